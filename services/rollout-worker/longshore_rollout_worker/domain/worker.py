"""The worker: leases attempts while it has room, keeps the leases alive, stops what is lost or cancelled, drains.

Three things run: the lease loop (long-poll), the heartbeat loop (one call for all leases), one task per attempt.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longshore_common import scope, tracing
from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_rollout_worker.domain.attempt import AttemptRunner
from longshore_rollout_worker.domain.lease_table import LeaseTable
from longshore_rollout_worker.domain.ports import Controller, Lease, LeaseKey
from longshore_rollout_worker.domain.vocabulary import AttemptEnd, Failure

log = get_logger(__name__)

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True)
class WorkerSettings:
    """Times in seconds; see settings.Settings for the reasons."""

    worker_id: str
    capacity: int
    poll_s: float
    heartbeat_s: float
    drain_s: float


@dataclass(frozen=True)
class WorkerStatus:
    """What the worker is doing."""

    worker_id: str
    running: int
    capacity: int
    draining: bool
    completed: int
    attempt_ids: tuple[str, ...]


class Worker:
    """One worker. `run` is its life; `drain` lets it end early."""

    def __init__(
        self,
        controller: Controller,
        runner: AttemptRunner,
        clock: Clock,
        settings: WorkerSettings,
        on_end: Callable[[AttemptEnd], None] = lambda _: None,
    ) -> None:
        self._controller, self._runner, self._clock, self._settings = controller, runner, clock, settings
        self._on_end = on_end
        self._table = LeaseTable()
        self._tasks: dict[LeaseKey, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._leasing: asyncio.Task[None] | None = None
        self._draining = False
        self._completed = 0

    def status(self) -> WorkerStatus:
        """A snapshot."""
        attempts = tuple(sorted(key.attempt_id for key in self._tasks))
        return WorkerStatus(
            self._settings.worker_id,
            len(self._tasks),
            self._settings.capacity,
            self._draining,
            self._completed,
            attempts,
        )

    async def run(self) -> None:
        """Works until cancelled; then drains for drain_s seconds, stops what is left, and cleans up."""
        self._leasing = asyncio.create_task(self._lease_loop())
        beating = asyncio.create_task(self._heartbeat_loop())
        try:
            await asyncio.gather(self._leasing, beating)
        finally:
            self._leasing.cancel()
            await asyncio.wait([self._leasing])
            await self._end()
            beating.cancel()
            await asyncio.gather(self._leasing, beating, return_exceptions=True)

    async def drain(self, timeout_s: float) -> int:
        """Takes no new leases; answers when the running attempts have ended or after timeout_s: how many still run."""
        self._draining = True
        self._changed.set()
        deadline = self._clock.monotonic() + timeout_s
        # A call for leases that is on its way may still bring some: they are run, not dropped.
        if self._leasing is not None:
            await asyncio.wait([self._leasing], timeout=max(0.0, timeout_s))
        if self._tasks:
            left_s = deadline - self._clock.monotonic()
            await asyncio.wait(list(self._tasks.values()), timeout=max(0.0, left_s))
        return len(self._tasks)

    async def _end(self) -> None:
        left = await self.drain(self._settings.drain_s)
        if left:
            log.warning("stopping attempts that did not end in time", worker=self._settings.worker_id, attempts=left)
        # Nothing is written for these: their leases run out and they are leased again.
        self._stop(list(self._tasks), AttemptEnd.ABANDONED)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        await self._runner.cleaned()

    async def _lease_loop(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._draining:
            room = self._settings.capacity - len(self._tasks)
            if room <= 0:
                await self._changed.wait()
                self._changed.clear()
                continue
            try:
                leases = await self._controller.lease(self._settings.worker_id, room, self._settings.poll_s)
            except LongshoreError as error:
                log.warning("no lease", worker=self._settings.worker_id, error=error.message)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            for lease in leases:
                self._start(lease)

    def _start(self, lease: Lease) -> None:
        if lease.key in self._table:
            return
        self._table.add(lease, self._clock.monotonic())
        self._tasks[lease.key] = asyncio.create_task(self._attempt(lease))

    async def _attempt(self, lease: Lease) -> None:
        ids = {"run": lease.run_id, "attempt": lease.key.attempt_id}
        with scope.bound(**ids), tracing.span("attempt", **ids):
            await self._to_its_end(lease)

    async def _to_its_end(self, lease: Lease) -> None:
        end = AttemptEnd.ABANDONED
        try:
            # The controller learns of a seal from the store, maybe before us: then this lease would look lost.
            end = await self._runner.run(lease, lambda: self._table.remove(lease.key))
        except asyncio.CancelledError:
            end = self._table.stopped(lease.key) or AttemptEnd.ABANDONED
            if end is AttemptEnd.CANCELLED:
                await self._free(lease.key)
        except Exception as error:
            log.error("attempt broke the worker", attempt=lease.key.attempt_id, error=repr(error), exc_info=True)
        finally:
            self._table.remove(lease.key)
            self._tasks.pop(lease.key, None)
            self._completed += end in (AttemptEnd.SCORED, AttemptEnd.FAILED)
            self._on_end(end)
            self._changed.set()

    async def _free(self, key: LeaseKey) -> None:
        # Not an outcome: a run that was stopped is resumed with this attempt, a discarded one is not leased again.
        reason = (Failure.EVICTED, "stopped: its run does not want it now")
        try:
            await self._controller.complete(self._settings.worker_id, key, reason)
        except LongshoreError as error:
            log.info("cancelled lease not freed", attempt=key.attempt_id, error=error.message)

    async def _heartbeat_loop(self) -> None:
        while True:
            await self._clock.sleep(min(self._settings.heartbeat_s, self._table.shortest_ttl_s() / 4))
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        keys, sent = self._table.keys(), self._clock.monotonic()
        if keys:
            try:
                answer = await self._controller.heartbeat(self._settings.worker_id, keys)
            except LongshoreError as error:
                log.warning("no heartbeat", worker=self._settings.worker_id, error=error.message)
            else:
                self._stop(answer.lost, AttemptEnd.LOST)
                self._stop(answer.cancelled, AttemptEnd.CANCELLED)
                self._table.confirm(keys, sent)
        self._stop(self._table.expired(self._clock.monotonic()), AttemptEnd.LOST)

    def _stop(self, keys: Sequence[LeaseKey], why: AttemptEnd) -> None:
        for key in self._table.stop(keys, why):
            log.info("attempt stopped", attempt=key.attempt_id, epoch=key.epoch, why=why)
            self._tasks[key].cancel()
