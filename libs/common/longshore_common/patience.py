"""Waits out what other services miss while they restart: an upgrade takes all of them away for a moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class Patience:
    """Repeats a call that failed for a passing reason, for `seconds` after its first failure.

    errors: which are repeated, if they are retryable.
    """

    def __init__(self, clock: Clock, seconds: float, errors: type[LongshoreError] = LongshoreError) -> None:
        self._clock = clock
        self._seconds = seconds
        self._errors = errors

    async def __call__(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The call's result; it must be idempotent. Raises its last error."""
        failing_since: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await call()
            except LongshoreError as error:
                now = self._clock.monotonic()
                failing_since = now if failing_since is None else failing_since
                passing = error.retryable and isinstance(error, self._errors)
                if not passing or now - failing_since >= self._seconds:
                    raise
                log.warning("waiting for another service", what=what, error=error.message, pause_s=pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
