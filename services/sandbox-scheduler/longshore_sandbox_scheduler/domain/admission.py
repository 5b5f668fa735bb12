"""A bounded number of places, given out in order of asking."""

from __future__ import annotations

import asyncio
from collections import deque

from longshore_common.errors import QuotaExceeded


class Admission:
    """Places for sandboxes. Whoever finds none waits in line, up to the caller's own time."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def acquire(self, wait_s: float) -> None:
        """Takes a place.

        Raises:
            QuotaExceeded: none became free within wait_s seconds.
        """
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.shield(turn)
        except TimeoutError:
            self._leave(turn)
            raise QuotaExceeded(
                f"all {self._places} sandboxes are in use and none became free within {wait_s:.0f} s; "
                "try again later, or raise max_sandboxes",
                which="sandboxes",
            ) from None
        except asyncio.CancelledError:
            self._leave(turn)
            raise

    def _leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self.release()  # The place came at the same moment; the next one gets it.
        else:
            self._waiting.remove(turn)
            turn.cancel()

    def release(self) -> None:
        """Gives a place back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
