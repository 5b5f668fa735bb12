"""Leases for workers: grant (fenced first), heartbeat, complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, LongshoreError, PermissionDenied
from longshore_common.log import get_logger
from longshore_controller import metrics
from longshore_controller.application.context import RunContexts
from longshore_controller.domain.leases import HeartbeatVerdict, LeaseRef
from longshore_controller.domain.plan import ResolvedPlan
from longshore_controller.domain.ports import Trajectory
from longshore_controller.domain.records import RunTask
from longshore_controller.domain.stores import Grant, LeaseStore, NewEvent, RunStore, WorkStore
from longshore_controller.domain.vocabulary import EventKind, LeaseState, Purpose
from longshore_controller.signals import Signal, wait_for

log = get_logger(__name__)

_POLL_S = 1.0
"""Also what makes expired leases of dead workers visible to waiting ones."""
MAX_WAIT_S = 60.0
_FENCES_AT_ONCE = 32


@dataclass(frozen=True)
class Failure:
    """Why a worker could not bring an attempt to a reward."""

    name: str
    evidence: str


@dataclass(frozen=True)
class GrantedLease:
    """All a worker needs to run one attempt."""

    ref: LeaseRef
    run_id: str
    group_id: str
    index: int
    seed: int
    purpose: Purpose
    pinned_version: int | None
    alias: str
    task: RunTask
    plan: ResolvedPlan
    ttl_s: float

    @property
    def temperature(self) -> float:
        """Of training or of evaluation."""
        spec = self.plan.spec
        return spec.rollout.temperature if self.purpose is Purpose.TRAIN else spec.evaluation.temperature

    @property
    def agent_timeout_s(self) -> float:
        """Seconds; the spec's, never above the task's own."""
        asked = self.plan.spec.rollout.agent_timeout_s
        own = self.task.agent_timeout_s
        return min(asked or own, own) if own > 0 else (asked or 0.0)


class LeaseService:
    """One attempt is with one worker at a time; every grant has a new epoch, fenced before."""

    def __init__(
        self,
        runs: RunStore,
        work: WorkStore,
        leases: LeaseStore,
        contexts: RunContexts,
        trajectory: Trajectory,
        clock: Clock,
        work_added: Signal,
        *,
        ttl_s: float,
        batch: int,
    ) -> None:
        self._runs = runs
        self._work = work
        self._leases = leases
        self._contexts = contexts
        self._trajectory = trajectory
        self._clock = clock
        self._work_added = work_added
        self._ttl_s = ttl_s
        self._batch = batch

    async def lease(self, worker_id: str, limit: int, wait_s: float) -> list[GrantedLease]:
        """Up to `limit` leases; waits up to wait_s seconds (at most 60) while there is no work."""
        started = self._clock.monotonic()
        leases = await self._wait(worker_id, limit, started + min(wait_s, MAX_WAIT_S))
        granted = str(bool(leases)).lower()
        metrics.LEASE_WAIT_SECONDS.labels(granted).observe(self._clock.monotonic() - started)
        return leases

    async def _wait(self, worker_id: str, limit: int, deadline: float) -> list[GrantedLease]:
        while True:
            ticket = self._work_added.ticket()
            if await self._leases.has_work(self._clock.now_ms()):
                leases = await self._grant(worker_id, min(limit, self._batch))
                if leases:
                    return leases
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return []
            await wait_for(ticket, min(_POLL_S, remaining))

    async def _grant(self, worker_id: str, limit: int) -> list[GrantedLease]:
        with metrics.LEASE_SECONDS.time():
            return await self._claim(worker_id, limit)

    async def _claim(self, worker_id: str, limit: int) -> list[GrantedLease]:
        grants = await self._leases.claim(worker_id, limit, self._clock.now_ms(), self._ttl_s)
        await self._note_expired(grants)
        gate = asyncio.Semaphore(_FENCES_AT_ONCE)
        fenced = await asyncio.gather(*(self._fence(grant, gate) for grant in grants))
        return [await self._lease(grant) for grant, ok in zip(grants, fenced, strict=True) if ok]

    async def _fence(self, grant: Grant, gate: asyncio.Semaphore) -> bool:
        ref = LeaseRef(grant.row.attempt_id, grant.row.epoch + 1)
        try:
            async with gate:
                await self._trajectory.fence(ref.attempt_id, ref.epoch)
        except Conflict as error:
            # Sealed meanwhile: the sealed event will say so. A newer epoch in the store: reconciling queues it again.
            log.info("attempt not leased", attempt=ref.attempt_id, epoch=ref.epoch, reason=error.message)
            await self._work.mark_done([ref.attempt_id])
            return False
        except LongshoreError as error:
            log.warning("fence failed, attempt back in queue", attempt=ref.attempt_id, error=error.message)
            await self._leases.release([ref])
            return False
        return True

    async def _lease(self, grant: Grant) -> GrantedLease:
        context = await self._contexts.get(grant.row.run_id)
        metrics.LEASES.labels(grant.row.run_id, grant.purpose.value).inc()
        return GrantedLease(
            ref=LeaseRef(grant.row.attempt_id, grant.row.epoch + 1),
            run_id=grant.row.run_id,
            group_id=grant.row.group_id,
            index=grant.row.index,
            seed=grant.row.seed,
            purpose=grant.purpose,
            pinned_version=grant.pinned_version,
            alias=context.alias,
            task=context.tasks[grant.task_digest],
            plan=context.plan,
            ttl_s=self._ttl_s,
        )

    async def _note_expired(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            row = grant.row
            if row.state is LeaseState.LEASED:
                metrics.EXPIRED.labels(row.run_id).inc()
                message = (
                    f"attempt {row.attempt_id}: worker '{row.worker_id}' went silent; leased as epoch {row.epoch + 1}"
                )
                data = {"attempt": row.attempt_id, "worker": row.worker_id, "epoch": row.epoch}
                await self._runs.append(row.run_id, NewEvent(EventKind.LEASE_EXPIRED, message, data))

    async def heartbeat(self, worker_id: str, refs: Sequence[LeaseRef]) -> HeartbeatVerdict:
        """Extends the worker's leases; says which are lost and which the run no longer wants."""
        return await self._leases.heartbeat(worker_id, refs, self._clock.now_ms(), self._ttl_s)

    async def complete(self, worker_id: str, ref: LeaseRef, failure: Failure | None) -> bool:
        """Frees a lease; True when the attempt will be leased again.

        With a failure and no retries left the attempt is sealed as failed here.

        Raises:
            Conflict: the lease is not this worker's (any more).
        """
        if failure is None:
            await self._leases.complete(worker_id, ref, failed=False, retries=0)
            return False
        run_id = await self._leases.run_of(ref.attempt_id)
        retries = (await self._contexts.get(run_id)).plan.spec.rollout.retries if run_id else 0
        result = await self._leases.complete(worker_id, ref, failed=True, retries=retries)
        await self._note_failure(result.row.run_id, ref, failure, result.will_retry)
        if result.seal_as_failed:
            await self._seal(ref, failure)
        elif result.will_retry:
            self._work_added.notify()
        return result.will_retry

    async def _seal(self, ref: LeaseRef, failure: Failure) -> None:
        try:
            await self._trajectory.seal_failed(ref.attempt_id, ref.epoch, failure.name, failure.evidence)
        except (Conflict, PermissionDenied) as error:
            log.info("attempt was sealed or fenced already", attempt=ref.attempt_id, reason=error.message)
        await self._work.mark_done([ref.attempt_id])

    async def _note_failure(self, run_id: str, ref: LeaseRef, failure: Failure, will_retry: bool) -> None:
        metrics.RETRIES.labels(run_id, failure.name, str(will_retry).lower()).inc()
        kind = EventKind.ATTEMPT_RETRIED if will_retry else EventKind.ATTEMPT_FAILED
        message = f"attempt {ref.attempt_id} (epoch {ref.epoch}): {failure.name}: {failure.evidence[:300]}"
        data = {"attempt": ref.attempt_id, "epoch": ref.epoch, "failure": failure.name}
        await self._runs.append(run_id, NewEvent(kind, message, data))
