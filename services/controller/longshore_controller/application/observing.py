"""Keeps the gauges in line with the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_controller import metrics
from longshore_controller.domain.records import RunRecord
from longshore_controller.domain.run_state import FINISHED
from longshore_controller.domain.stores import LeaseStore, RunStore
from longshore_controller.domain.vocabulary import LeaseState, RunState

log = get_logger(__name__)

_EVERY_S = 5.0
_SHOWN_AFTER_END_MS = 3600 * 1000
"""How long the gauges of an ended run stay: a scrape must see its last figures, the page must not grow for ever."""


class Observer:
    """Reads counts from the database every few seconds."""

    def __init__(self, runs: RunStore, leases: LeaseStore, clock: Clock) -> None:
        self._runs = runs
        self._leases = leases
        self._clock = clock
        self._shown: set[str] = set()

    async def serve(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self.observe()
            except LongshoreError as error:
                log.warning("metrics are old", error=error.message)
            await self._clock.sleep(_EVERY_S)

    async def observe(self) -> None:
        """Sets the gauges once."""
        runs = await self._runs.in_states(list(RunState))
        counts = Counter(run.state for run in runs)
        for state in RunState:
            metrics.RUNS.labels(state.value).set(counts[state])
        since_ms = self._clock.now_ms() - _SHOWN_AFTER_END_MS
        shown = {run.run_id: run for run in runs if run.state not in FINISHED or run.finished_at_ms > since_ms}
        for run_id in self._shown - set(shown):
            metrics.forget(run_id)
        self._shown = set(shown)
        depths = await self._leases.queue_depth()
        for run in shown.values():
            _show(run, depths.get(run.run_id, {}))
            newest = await self._runs.newest_step(run.run_id)
            if newest is not None:
                metrics.STEPS.show(run.run_id, newest.step, newest.metrics, newest.seconds)


def _show(run: RunRecord, depth: Mapping[LeaseState, int]) -> None:
    for state in RunState:
        metrics.RUN_STATE.labels(run.run_id, state.value).set(run.state is state)
    metrics.RUN_STEP.labels(run.run_id).set(run.step)
    metrics.RUN_TOTAL_STEPS.labels(run.run_id).set(run.total_steps)
    metrics.RUN_INCARNATION.labels(run.run_id).set(run.incarnation)
    for lease_state in (LeaseState.QUEUED, LeaseState.LEASED):
        metrics.ATTEMPTS.labels(run.run_id, lease_state.value).set(depth.get(lease_state, 0))
