"""Follows what the trajectory store seals, and brings the controller's view in line with it."""

from __future__ import annotations

import asyncio

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_controller.domain.ports import Trajectory
from longshore_controller.domain.records import SealedAttempt
from longshore_controller.domain.stores import RunStore, WorkStore
from longshore_controller.domain.vocabulary import Purpose
from longshore_controller.signals import Signal

log = get_logger(__name__)

_RETRY_S = 1.0
_BATCH = 256


class SealedFollower:
    """One per active run: every sealed or discarded attempt leaves the queue and moves its group."""

    def __init__(self, work: WorkStore, trajectory: Trajectory, clock: Clock, changed: Signal) -> None:
        self._work = work
        self._trajectory = trajectory
        self._clock = clock
        self._changed = changed

    async def follow(self, run_id: str) -> None:
        """Runs until cancelled; a broken stream is taken up again where it was."""
        while True:
            try:
                await self._follow_once(run_id)
            except LongshoreError as error:
                if not error.retryable:
                    raise
                log.warning("sealed stream broke, again in a moment", run=run_id, error=error.message)
            await self._clock.sleep(_RETRY_S)

    async def _follow_once(self, run_id: str) -> None:
        queue: asyncio.Queue[SealedAttempt | None] = asyncio.Queue(maxsize=4 * _BATCH)
        reader = asyncio.create_task(self._read(run_id, queue))
        try:
            while (first := await queue.get()) is not None:
                batch = [first]
                while not queue.empty() and len(batch) < _BATCH:
                    item = queue.get_nowait()
                    if item is None:
                        queue.put_nowait(None)
                        break
                    batch.append(item)
                await self._work.apply_sealed(run_id, batch)
                self._changed.notify()
            await reader
        finally:
            reader.cancel()

    async def _read(self, run_id: str, queue: asyncio.Queue[SealedAttempt | None]) -> None:
        try:
            after = await self._work.sealed_sequence(run_id)
            async for sealed in self._trajectory.watch_sealed(run_id, after):
                await queue.put(sealed)
        finally:
            await queue.put(None)


class Reconciler:
    """Reads the whole truth from the trajectory store; done when a phase starts, and when nothing moves."""

    def __init__(self, runs: RunStore, work: WorkStore, trajectory: Trajectory) -> None:
        self._runs = runs
        self._work = work
        self._trajectory = trajectory

    async def reconcile(self, run_id: str) -> None:
        """Takes over group states and the committed step; queues attempts again that nobody holds and nobody sealed."""
        train = await self._trajectory.list_groups(run_id, Purpose.TRAIN)
        evaluation = await self._trajectory.list_groups(run_id, Purpose.EVAL)
        await self._work.set_group_states([*train, *evaluation])
        # A batch is committed after its version was published: its step is done, whatever the trainer could report.
        await self._runs.advance(run_id, max((group.consumed_step for group in train), default=0))
        for group_id in await self._work.finished_open_groups(run_id):
            forgotten = await self._trajectory.open_attempts(group_id)
            if forgotten:
                log.info("attempts queued again", run=run_id, group=group_id, attempts=len(forgotten))
                await self._work.requeue(sorted(forgotten))
