"""What a piece of work belongs to: run, attempt and sandbox, on its log lines and on the calls it makes.

Ids are bound where work begins (a lease, a run's driver, a call that arrives) and go along as gRPC metadata, together
with the trace when tracing is on. Bound ids end with the block, or with the asyncio task that bound them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

from longshore_common import tracing

_HEADER = "longshore-"
_FIELDS = {"run": "run_id", "attempt": "attempt_id", "sandbox": "sandbox_id"}


def bind(**ids: str) -> None:
    """Until the end of this task, log lines and calls carry these ids."""
    bind_contextvars(**ids)


@contextlib.contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Within the block, log lines and calls carry these ids."""
    with bound_contextvars(**ids):
        yield


def outgoing() -> list[tuple[str, str]]:
    """Metadata of a call that is made now."""
    here = get_contextvars()
    bound_here = [(_HEADER + key, str(here[key])) for key in _FIELDS if key in here]
    # Metadata is ASCII: a name that is not must not break the call it goes with.
    return [(key, value) for key, value in bound_here if value.isascii()] + list(tracing.headers().items())


@contextlib.contextmanager
def arrived(name: str, metadata: Iterable[tuple[str, str | bytes]], request: Any = None) -> Iterator[None]:
    """Within the block, work is that of a call: its caller's ids, those of the request itself, its trace.

    Args:
        name: `service.Method`, the span's name.
    """
    found = ids(metadata, request)
    headers = {key: value for key, value in metadata if isinstance(value, str)}
    with bound_contextvars(**found), tracing.served(name, headers, found):
        yield


def ids(metadata: Iterable[tuple[str, str | bytes]], request: Any = None) -> dict[str, str]:
    """What a call belongs to: the fields of its request, else what its caller says."""
    found = {}
    for header, value in metadata:
        key = header.removeprefix(_HEADER)
        if key in _FIELDS and header != key and isinstance(value, str):
            found[key] = value
    for key, field in _FIELDS.items():
        value = getattr(request, field, "")
        if isinstance(value, str) and value:
            found[key] = value
    return found
