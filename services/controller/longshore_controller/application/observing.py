"""Keeps the gauges in line with the database."""

from __future__ import annotations

from collections import Counter

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_controller import metrics
from longshore_controller.domain.run_state import ACTIVE
from longshore_controller.domain.stores import LeaseStore, RunStore
from longshore_controller.domain.vocabulary import RunState

log = get_logger(__name__)

_EVERY_S = 5.0


class Observer:
    """Reads counts from the database every few seconds."""

    def __init__(self, runs: RunStore, leases: LeaseStore, clock: Clock) -> None:
        self._runs = runs
        self._leases = leases
        self._clock = clock

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
        for lease_state, count in (await self._leases.queue_depth()).items():
            metrics.ATTEMPTS.labels(lease_state).set(count)
        for run in runs:
            if run.state in ACTIVE:
                metrics.STEP.labels(run.run_id).set(run.step)
