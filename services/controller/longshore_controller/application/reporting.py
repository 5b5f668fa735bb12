"""Collects what a report is computed from, at any time in a run's life."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longshore_common.clock import Clock
from longshore_controller.application.context import RunContexts
from longshore_controller.domain.evaluation import AttemptResult, Comparison, compare
from longshore_controller.domain.planner import BASE_PANEL, FINAL_PANEL
from longshore_controller.domain.ports import Gateway, JobLauncher, Trajectory
from longshore_controller.domain.records import EventRecord, PolicyInfo, RunRecord
from longshore_controller.domain.report import Report, ReportInput, build_report
from longshore_controller.domain.seeds import derive_seed
from longshore_controller.domain.stores import RunStore, WorkStore
from longshore_controller.domain.vocabulary import Purpose, RunState

_EVENT_PAGE = 1000
_TEST = "test"


class ReportService:
    """Builds reports; the final one is kept with the run."""

    def __init__(
        self,
        runs: RunStore,
        work: WorkStore,
        contexts: RunContexts,
        trajectory: Trajectory,
        gateway: Gateway,
        launcher: JobLauncher,
        clock: Clock,
    ) -> None:
        self._runs = runs
        self._work = work
        self._contexts = contexts
        self._trajectory = trajectory
        self._gateway = gateway
        self._launcher = launcher
        self._clock = clock

    async def report_json(self, run: str) -> str:
        """The kept report of a run that succeeded; otherwise one of the moment."""
        record = await self._runs.get(run)
        kept = await self._runs.report(record.run_id)
        if kept and record.state is RunState.SUCCEEDED:
            return kept
        policies = await self._gateway.policies(record.alias)
        return (await self.build(record.run_id, policies)).model_dump_json()

    async def build(self, run_id: str, policies: Sequence[PolicyInfo]) -> Report:
        """A report from what is known now."""
        run = await self._runs.get(run_id)
        context = await self._contexts.get(run_id)
        panels = await self._work.panels(run_id)
        rows = await asyncio.gather(*(self._trajectory.results(run_id, panel) for panel in panels))
        results = dict(zip(panels, rows, strict=True))
        source = ReportInput(
            run=run,
            plan=context.plan,
            tasks=list(context.tasks.values()),
            events=await self._all_events(run_id),
            steps=await self._runs.steps(run_id),
            step_times=await self._work.step_times(run_id),
            comparison=await self._comparison(run, results),
            results=results,
            train_counts=await self._trajectory.counts(run_id, Purpose.TRAIN),
            eval_counts=await self._trajectory.counts(run_id, Purpose.EVAL),
            train_totals=await self._work.totals(run_id, Purpose.TRAIN),
            eval_totals=await self._work.totals(run_id, Purpose.EVAL),
            policies=policies,
            platform=self._launcher.platform,
            now_ms=self._clock.now_ms(),
        )
        return await asyncio.to_thread(build_report, source)

    async def _comparison(self, run: RunRecord, results: dict[str, list[AttemptResult]]) -> Comparison | None:
        """None until both test panels are complete: a look before the end would open the test split twice."""
        for panel in (BASE_PANEL, FINAL_PANEL):
            groups, still_open = await self._work.panel_progress(run.run_id, panel)
            if groups == 0 or still_open:
                return None
        seed = derive_seed(run.seed, "bootstrap")
        return await asyncio.to_thread(compare, _TEST, results[BASE_PANEL], results[FINAL_PANEL], seed)

    async def _all_events(self, run_id: str) -> list[EventRecord]:
        events: list[EventRecord] = []
        while page := await self._runs.events(run_id, events[-1].sequence if events else 0, _EVENT_PAGE):
            events += page
        return events
