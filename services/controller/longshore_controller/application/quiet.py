"""When to look at the whole truth because nothing has moved for a while."""

from __future__ import annotations

from longshore_common.clock import Clock

_FIRST_S = 1.0
_LAST_S = 30.0


class QuietTimer:
    """Due 1, 2, 4, ... 30 seconds after the last movement: soon after a restart, rarely in a long wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.moved()

    def moved(self) -> None:
        """Something happened: start again."""
        self._interval_s = _FIRST_S
        self._since = self._clock.monotonic()

    def due(self) -> bool:
        """True once per interval."""
        if self._clock.monotonic() - self._since < self._interval_s:
            return False
        self._interval_s = min(2 * self._interval_s, _LAST_S)
        self._since = self._clock.monotonic()
        return True
