"""Tells the sandbox scheduler which sandboxes the queued attempts will want, so that warm pools are there first."""

from __future__ import annotations

from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_controller.application.context import RunContexts
from longshore_controller.domain.ports import SandboxDemand
from longshore_controller.domain.run_state import ACTIVE
from longshore_controller.domain.stores import RunStore, WorkStore
from longshore_controller.signals import Signal, wait_for

log = get_logger(__name__)

_TICK_S = 5.0


class DemandAnnouncer:
    """Announces changes only. Nothing depends on it: without a warm sandbox a claim starts a cold one."""

    def __init__(
        self, runs: RunStore, work: WorkStore, contexts: RunContexts, demand: SandboxDemand, work_added: Signal
    ) -> None:
        self._runs = runs
        self._work = work
        self._contexts = contexts
        self._demand = demand
        self._work_added = work_added
        self._told: dict[str, dict[str, int]] = {}

    async def serve(self) -> None:
        """Runs until cancelled."""
        while True:
            ticket = self._work_added.ticket()
            try:
                await self.announce()
            except LongshoreError as error:
                log.warning("demand for sandboxes not announced", error=error.message)
            await wait_for(ticket, _TICK_S)

    async def announce(self) -> None:
        """One round: the active runs whose queue has changed, and once more those that have ended."""
        active = {run.run_id: run for run in await self._runs.in_states(sorted(ACTIVE))}
        for run_id in active:
            wanted = await self._work.queued_tasks(run_id)
            if wanted != self._told.get(run_id, {}):
                spec = (await self._contexts.get(run_id)).plan.spec
                await self._demand.announce(run_id, wanted, spec.sandbox)
                self._told[run_id] = wanted
        for run_id in self._told.keys() - active.keys():
            await self._demand.announce(run_id, {}, None)
            del self._told[run_id]
