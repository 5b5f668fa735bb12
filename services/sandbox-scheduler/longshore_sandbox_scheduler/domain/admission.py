"""How many sandboxes at a time, and who goes next: a bounded queue, by priority, then the run that has the fewest."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field

from longshore_common.errors import QuotaExceeded

_REMEMBERED_TURNS = 64


@dataclass(eq=False)
class _Waiter:
    run_id: str
    priority: int
    number: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """At most `places` sandboxes hold a place; at most `max_waiting` claims wait for one."""

    def __init__(self, places: int, max_waiting: int = 10_000) -> None:
        self._places = places
        self._max_waiting = max_waiting
        self._in_use: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._numbers = 0
        self._released_at: list[float] = []

    @property
    def places(self) -> int:
        """How many there are."""
        return self._places

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self._places - self._in_use.total()

    @property
    def waiting(self) -> int:
        """Claims in line."""
        return len(self._waiting)

    def take(self, run_id: str) -> None:
        """Takes a place without waiting, for a sandbox that runs already; may go beyond `places`."""
        self._in_use[run_id] += 1

    async def acquire(self, wait_s: float, run_id: str = "", priority: int = 0) -> None:
        """Takes a place for a run.

        Raises:
            QuotaExceeded: none became free within wait_s seconds, or the queue is full;
                details["retry_after_s"] says when it is worth to come again.
        """
        if self.free > 0 and not self._waiting:
            self._in_use[run_id] += 1
            return
        if len(self._waiting) >= self._max_waiting:
            raise self._refused(f"{len(self._waiting)} claims wait already (max_waiting)")
        self._numbers += 1
        waiter = _Waiter(run_id, priority, self._numbers)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.shield(waiter.turn)
        except TimeoutError:
            self._leave(waiter)
            raise self._refused(f"none became free within {wait_s:.0f} s") from None
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def _refused(self, why: str) -> QuotaExceeded:
        return QuotaExceeded(
            f"all {self._places} sandboxes are in use and {why}; try again later, or raise max_sandboxes",
            which="sandboxes",
            details={"retry_after_s": str(self.retry_after_s())},
        )

    def retry_after_s(self) -> int:
        """Seconds until a newcomer's turn, by how fast places came free lately; 1 to 60."""
        turns = self._released_at
        if len(turns) < 2 or turns[-1] <= turns[0]:
            return 5
        per_place = (turns[-1] - turns[0]) / (len(turns) - 1)
        return min(60, max(1, math.ceil(per_place * (len(self._waiting) + 1))))

    def _leave(self, waiter: _Waiter) -> None:
        if waiter.turn.done():
            self.release(waiter.run_id)  # The place came at the same moment; the next one gets it.
        else:
            self._waiting.remove(waiter)
            waiter.turn.cancel()

    def release(self, run_id: str = "") -> None:
        """Gives a run's place back."""
        self._in_use[run_id] -= 1
        if self._in_use[run_id] <= 0:
            del self._in_use[run_id]
        self._released_at = [*self._released_at[1 - _REMEMBERED_TURNS :], asyncio.get_running_loop().time()]
        if self._waiting and self.free > 0:
            waiter = min(self._waiting, key=self._order)
            self._waiting.remove(waiter)
            self._in_use[waiter.run_id] += 1
            waiter.turn.set_result(None)

    def _order(self, waiter: _Waiter) -> tuple[int, int, int]:
        return -waiter.priority, self._in_use[waiter.run_id], waiter.number
