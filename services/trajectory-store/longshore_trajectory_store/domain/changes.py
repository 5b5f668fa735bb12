"""Wakes whoever waits for a run to change, without polling and without a lost wake-up."""

from __future__ import annotations

import asyncio
import contextlib


class Changes:
    """A generation per run that grows with every change.

    Read `generation` first, then the store, then `wait` with what was read: a change in between ends the wait at once.
    """

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._generations: dict[str, int] = {}
        self._total = 0

    def generation(self, run_id: str) -> int:
        """Number of changes seen so far; run_id empty: of all runs."""
        return self._generations.get(run_id, 0) if run_id else self._total

    async def notify(self, run_id: str) -> None:
        """Call after the commit."""
        async with self._condition:
            self._generations[run_id] = self._generations.get(run_id, 0) + 1
            self._total += 1
            self._condition.notify_all()

    async def wait(self, run_id: str, seen: int, timeout_s: float | None) -> None:
        """Returns when the generation is no longer `seen`, or after timeout_s seconds."""

        def changed() -> bool:
            return self.generation(run_id) != seen

        async with self._condition:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._condition.wait_for(changed)
