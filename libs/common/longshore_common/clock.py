"""Time as a dependency, so that domain code and tests can choose it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock and sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that moves only when told; for tests."""

    def __init__(self, start_ms: int = 0) -> None:
        self._ms = float(start_ms)
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return self._ms / 1000

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._ms + 1000 * seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        """Moves time forward and wakes whoever slept until then."""
        self._ms += 1000 * seconds
        due = [future for at, future in self._sleepers if at <= self._ms]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self._ms]
        for future in due:
            if not future.done():
                future.set_result(None)
