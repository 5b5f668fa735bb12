"""Calls to other services that outlive their restarts: retried while unavailable, within a bound."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.grpc_client import call_sync
from longshore_common.log import get_logger

log = get_logger(__name__)

Response = TypeVar("Response")


class PatientCaller:
    """Calls until it works, an error is final, or `patience_s` seconds of retries have passed."""

    def __init__(self, patience_s: float, *, base_s: float = 0.2, max_s: float = 5.0) -> None:
        self._patience_s, self._base_s, self._max_s = patience_s, base_s, max_s

    def __call__(self, method: Callable[..., Response], request: Any, *, what: str, timeout_s: float) -> Response:
        """The response. Raises LongshoreError: at once when not retryable, Unavailable when patience is over."""
        started, pause = time.monotonic(), self._base_s
        while True:
            try:
                return call_sync(method, request, timeout=timeout_s)
            except LongshoreError as error:
                waited = time.monotonic() - started
                if not error.retryable:
                    raise
                if waited + pause > self._patience_s:
                    raise Unavailable(f"{what}: gave up after {waited:.0f} s: {error.message}") from error
                log.warning("call failed, trying again", what=what, error=error.message, pause_s=pause)
            time.sleep(pause)
            pause = min(pause * 2, self._max_s)
