"""Traces of attempts over OTLP. Off, and free of OpenTelemetry's imports, until OTEL_* variables name a collector."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from longshore_common.errors import InvalidSpec

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracer(Protocol):
    """`otel.OtelTracer`, or none."""

    def span(
        self, name: str, attributes: Mapping[str, str], parent: Mapping[str, str] | None
    ) -> AbstractContextManager[None]:
        """A span; parent: headers of a caller, None: what this task does already."""
        ...

    def headers(self) -> dict[str, str]:
        """The current span as headers; empty outside of one."""
        ...

    def trace_id(self) -> str:
        """Of the current span, hexadecimal; empty outside of one."""
        ...


_tracer: Tracer | None = None


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)


def configure(service: str) -> None:
    """Called by main once, after logging. Does nothing unless a collector is named.

    Raises:
        InvalidSpec: traces are asked for and the OpenTelemetry packages are not installed.
    """
    if not wanted(os.environ):
        return
    try:
        from longshore_common.otel import OtelTracer
    except ImportError as error:
        raise InvalidSpec(
            f"OTEL_* variables ask for traces, but {error.name} is not installed: install longshore[tracing], or set "
            "OTEL_SDK_DISABLED=true",
            field="OTEL_EXPORTER_OTLP_ENDPOINT",
        ) from error
    use(OtelTracer.exporting(service))


def use(tracer: Tracer | None) -> None:
    """From now on spans go there; None: nowhere."""
    global _tracer
    _tracer = tracer


def span(name: str, **attributes: str) -> AbstractContextManager[None]:
    """A part of what this task does."""
    if _tracer is None:
        return contextlib.nullcontext()
    return _tracer.span(name, attributes, None)


def served(name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> AbstractContextManager[None]:
    """A call that arrived with these headers."""
    if _tracer is None:
        return contextlib.nullcontext()
    return _tracer.span(name, attributes, headers)


def headers() -> dict[str, str]:
    """What a call must carry to be part of this trace."""
    return {} if _tracer is None else _tracer.headers()


def add_trace_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: the line names the trace it belongs to."""
    if _tracer is not None and (trace_id := _tracer.trace_id()):
        event["trace_id"] = trace_id
    return event
