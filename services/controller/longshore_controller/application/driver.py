"""Drives one run through its phases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from longshore_common import scope
from longshore_common.errors import Conflict, LongshoreError
from longshore_common.log import get_logger
from longshore_common.patience import Patience
from longshore_controller.application.closing import RunCloser
from longshore_controller.application.context import RunContext, RunContexts
from longshore_controller.application.evaluating import Evaluating
from longshore_controller.application.follower import SealedFollower
from longshore_controller.application.reporting import ReportService
from longshore_controller.application.training import Training
from longshore_controller.application.warm_start import Serving, WarmStart, base_dir
from longshore_controller.domain.ports import Artifacts, Gateway, Trajectory
from longshore_controller.domain.stores import RunStore
from longshore_controller.domain.vocabulary import RunState

log = get_logger(__name__)


class RunDriver:
    """Runs the phases in order. Each is idempotent, so a resumed run simply goes through them again."""

    def __init__(
        self,
        runs: RunStore,
        contexts: RunContexts,
        artifacts: Artifacts,
        trajectory: Trajectory,
        gateway: Gateway,
        closer: RunCloser,
        follower: SealedFollower,
        warm_start: WarmStart,
        serving: Serving,
        training: Training,
        evaluating: Evaluating,
        reports: ReportService,
        patiently: Patience,
    ) -> None:
        self._runs = runs
        self._contexts = contexts
        self._artifacts = artifacts
        self._trajectory = trajectory
        self._gateway = gateway
        self._closer = closer
        self._follower = follower
        self._warm_start = warm_start
        self._serving = serving
        self._training = training
        self._evaluating = evaluating
        self._reports = reports
        self._patiently = patiently

    async def drive(self, run_id: str) -> None:
        """From PENDING to SUCCEEDED or FAILED; cancelled when the run is stopped or the process ends."""
        scope.bind(run=run_id)
        try:
            context = await self._contexts.get(run_id)
            # So that even a run without a warm start publishes under an incarnation of its own.
            await self._runs.new_incarnation(run_id)
            await self._with_follower(context)
        except LongshoreError as error:
            await self._fail(run_id, error.message)
        except Exception as error:
            log.error("run driver failed", run=run_id, exc_info=True)
            await self._fail(run_id, f"internal error in the run driver: {type(error).__name__}: {error}")

    async def _with_follower(self, context: RunContext) -> None:
        follower = asyncio.create_task(self._follower.follow(context.run_id))
        phases = asyncio.create_task(self._phases(context))
        try:
            await asyncio.wait([follower, phases], return_when=asyncio.FIRST_COMPLETED)
            if phases.done():
                await phases
            else:
                await follower
        finally:
            for task in (phases, follower):
                task.cancel()
            await asyncio.gather(phases, follower, return_exceptions=True)

    async def _phases(self, context: RunContext) -> None:
        run_id = context.run_id
        folder = str(base_dir(context, self._artifacts))
        steps: list[tuple[RunState, Callable[[], Awaitable[None]]]] = [
            (RunState.WARMING, lambda: self._warm_start.run(context)),
            (RunState.SERVING, lambda: self._patiently("publish version 0", lambda: self._serving.run(context))),
            (RunState.TRAINING, lambda: self._training.run(context, folder)),
            (RunState.EVALUATING, lambda: self._evaluating.run(context)),
        ]
        for state, execute in steps:
            await self._runs.move(run_id, state)
            await execute()
        await self._finish(context)

    async def _finish(self, context: RunContext) -> None:
        run_id = context.run_id
        # Read before the alias is retired: afterwards the versions are unloaded.
        policies = await self._patiently("list versions", lambda: self._gateway.policies(context.alias))
        await self._patiently("close the run", lambda: self._trajectory.close_run(run_id, discard_open=True))
        await self._runs.move(run_id, RunState.SUCCEEDED)
        report = await self._patiently("report", lambda: self._reports.build(run_id, policies))
        await self._runs.save_report(run_id, report.model_dump_json())
        await self._closer.retire(run_id, context.alias)

    async def _fail(self, run_id: str, reason: str) -> None:
        log.error("run failed", run=run_id, reason=reason)
        try:
            await self._runs.move(run_id, RunState.FAILED, reason)
        except Conflict as error:
            # Stopped at the same moment: the user's word stands.
            log.info("the failed run has ended already", run=run_id, reason=error.message)
        await self._closer.close(run_id, (await self._runs.get(run_id)).alias)
