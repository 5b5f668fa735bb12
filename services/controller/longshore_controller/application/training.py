"""The training phase: keeps the trainer supplied with groups, evaluates dev on the way."""

from __future__ import annotations

import asyncio

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, LongshoreError
from longshore_common.log import get_logger
from longshore_common.patience import Patience
from longshore_controller.application.context import RunContext
from longshore_controller.application.follower import Reconciler
from longshore_controller.application.groups import GroupCreator
from longshore_controller.application.quiet import QuietTimer
from longshore_controller.application.trainer_jobs import TrainerJobs
from longshore_controller.domain.jobs import Addresses, JobFile, JobKind, rl_job
from longshore_controller.domain.planner import dev_due, dev_panel, next_training_groups, panel_groups
from longshore_controller.domain.ports import Artifacts, Job, Trajectory
from longshore_controller.domain.stores import RunStore, WorkStore
from longshore_controller.domain.vocabulary import Purpose, SplitName
from longshore_controller.signals import Signal, wait_for

log = get_logger(__name__)

_TICK_S = 1.0


class Training:
    """Idempotent: what is consumed stays consumed, the slots go on where they were."""

    def __init__(
        self,
        runs: RunStore,
        work: WorkStore,
        trajectory: Trajectory,
        artifacts: Artifacts,
        creator: GroupCreator,
        reconciler: Reconciler,
        jobs: TrainerJobs,
        clock: Clock,
        changed: Signal,
        addresses: Addresses,
        patiently: Patience,
        *,
        max_refills: int,
        reopen_s: float,
    ) -> None:
        self._runs = runs
        self._work = work
        self._trajectory = trajectory
        self._artifacts = artifacts
        self._creator = creator
        self._reconciler = reconciler
        self._jobs = jobs
        self._clock = clock
        self._changed = changed
        self._addresses = addresses
        self._max_refills = max_refills
        self._patiently = patiently
        self._reopen_s = reopen_s

    async def run(self, context: RunContext, base_dir_of_run: str) -> None:
        """Returns when all steps are committed.

        Raises:
            LongshoreError: the trainer died too often, or a slot cannot be filled.
        """
        run_id, plan = context.run_id, context.plan
        out_dir = self._artifacts.out_dir(run_id)
        base_dir = self._artifacts.resolve(base_dir_of_run)

        def make(incarnation: int) -> JobFile:
            return rl_job(plan, run_id, incarnation, context.alias, out_dir, base_dir, self._addresses)

        async def progress() -> tuple[bool, int]:
            await self._patiently("reconcile", lambda: self._reconciler.reconcile(run_id))
            step = (await self._runs.get(run_id)).step
            return step >= plan.steps, step

        await self._jobs.run(run_id, JobKind.RL, make, lambda job: self._supply(context, job), progress)
        await self._patiently("discard surplus", lambda: self._discard_surplus(run_id))

    async def _supply(self, context: RunContext, job: Job) -> int:
        """Plans groups until the job ends; gives its exit status."""
        ended = asyncio.create_task(job.wait())
        quiet, patient_since = QuietTimer(self._clock), self._clock.monotonic()
        try:
            while not ended.done():
                ticket = self._changed.ticket()
                now = self._clock.monotonic()
                try:
                    await self.plan_once(context)
                    if quiet.due():
                        await self._reconciler.reconcile(context.run_id)
                    patient_since = now
                except LongshoreError as error:
                    self._check_patience(error, now - patient_since)
                    await self._clock.sleep(_TICK_S / 4)
                if await _either(ended, ticket):
                    quiet.moved()
            return ended.result()
        finally:
            ended.cancel()

    def _check_patience(self, error: LongshoreError, waited_s: float) -> None:
        # Conflict: a stopped run is closed in the trajectory store until its new trainer opens it again.
        passing = error.retryable or isinstance(error, Conflict)
        if not passing or waited_s > self._reopen_s:
            raise error
        log.info("planning waits", reason=error.message)

    async def plan_once(self, context: RunContext) -> None:
        """Creates the groups that are due now: the dev panel of the committed step first, then training groups."""
        run_id, plan = context.run_id, context.plan
        step = (await self._runs.get(run_id)).step
        if dev_due(step, plan.spec.evaluation.dev_every, plan.steps) and not await self._dev_done(context, step):
            # Training groups wait: once the next version is published, this one may be unloaded.
            return
        shape = plan.shape(run_id, self._max_refills)
        ordinal = await self._work.next_ordinal(run_id)
        broken = await self._work.broken_slots(run_id)
        await self._creator.create(next_training_groups(shape, step, ordinal, broken))

    async def _dev_done(self, context: RunContext, step: int) -> bool:
        spec, panel = context.plan.spec, dev_panel(step)
        groups, still_open = await self._work.panel_progress(context.run_id, panel)
        tasks = context.plan.tasks[SplitName.DEV]
        if groups < len(tasks):
            plans = panel_groups(
                context.run_id, spec.seed, panel, SplitName.DEV, tasks, spec.evaluation.dev_samples, step
            )
            await self._creator.create_panel(panel, plans)
            return False
        return still_open == 0

    async def _discard_surplus(self, run_id: str) -> None:
        left = await self._work.unfinished_attempts(run_id, Purpose.TRAIN)
        if left:
            await self._trajectory.discard_surplus(left)
            await self._work.mark_done(left)


async def _either(ended: asyncio.Task[int], ticket: asyncio.Event) -> bool:
    """Waits for the job's end or the ticket, at most a tick; True when the ticket was called."""
    waiter = asyncio.create_task(wait_for(ticket, _TICK_S))
    try:
        await asyncio.wait([ended, waiter], return_when=asyncio.FIRST_COMPLETED)
        return waiter.done() and waiter.result()
    finally:
        waiter.cancel()
