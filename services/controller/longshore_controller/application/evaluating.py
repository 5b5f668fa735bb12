"""The last phase: two pinned policies on the frozen test split, opened once, with equal limits and seeds."""

from __future__ import annotations

from collections.abc import Mapping

from longshore_common.clock import Clock
from longshore_common.errors import Internal
from longshore_common.patience import Patience
from longshore_controller.application.context import RunContext
from longshore_controller.application.follower import Reconciler
from longshore_controller.application.groups import GroupCreator
from longshore_controller.application.quiet import QuietTimer
from longshore_controller.domain.planner import BASE_PANEL, FINAL_PANEL, GroupPlan, dev_panel, panel_groups
from longshore_controller.domain.ports import Gateway
from longshore_controller.domain.stores import RunStore, WorkStore
from longshore_controller.domain.vocabulary import SplitName
from longshore_controller.signals import Signal, wait_for

_TICK_S = 1.0
_SERVING = "serving"


class Evaluating:
    """Idempotent: a panel that exists is only waited for."""

    def __init__(
        self,
        runs: RunStore,
        work: WorkStore,
        gateway: Gateway,
        creator: GroupCreator,
        reconciler: Reconciler,
        clock: Clock,
        changed: Signal,
        patiently: Patience,
    ) -> None:
        self._runs = runs
        self._work = work
        self._gateway = gateway
        self._creator = creator
        self._reconciler = reconciler
        self._clock = clock
        self._changed = changed
        self._patiently = patiently

    async def run(self, context: RunContext) -> None:
        """Returns when every attempt of the panels is sealed."""
        await self._reconcile(context.run_id)
        step = (await self._runs.get(context.run_id)).step
        await self._patiently("publish the last version", lambda: self._ensure_served(context, step))
        panels = self._panels(context, step)
        await self._patiently("create panels", lambda: self._create(context.run_id, panels))
        await self._wait(context.run_id, list(panels))

    async def _reconcile(self, run_id: str) -> None:
        await self._patiently("reconcile", lambda: self._reconciler.reconcile(run_id))

    async def _create(self, run_id: str, panels: Mapping[str, list[GroupPlan]]) -> None:
        for panel, plans in panels.items():
            groups, _ = await self._work.panel_progress(run_id, panel)
            if groups < len(plans):
                await self._creator.create_panel(panel, plans)

    def _panels(self, context: RunContext, step: int) -> dict[str, list[GroupPlan]]:
        plan, run_id = context.plan, context.run_id
        spec, seed = plan.spec.evaluation, plan.spec.seed
        test = plan.tasks[SplitName.TEST]
        panels = {
            name: panel_groups(run_id, seed, name, SplitName.TEST, test, spec.test_samples, version)
            for name, version in ((BASE_PANEL, 0), (FINAL_PANEL, step))
        }
        if spec.dev_every:
            name, dev = dev_panel(step), plan.tasks[SplitName.DEV]
            panels[name] = panel_groups(run_id, seed, name, SplitName.DEV, dev, spec.dev_samples, step)
        return panels

    async def _ensure_served(self, context: RunContext, version: int) -> None:
        """After a restart the gateway may know the final version without serving it."""
        policy = await self._gateway.policy(context.alias, version)
        if policy is None:
            raise Internal(
                f"run {context.run_id}: step {version} is committed but the gateway has no version {version} of "
                f"'{context.alias}'; was its database replaced? Resume after restoring it",
                details={"run": context.run_id},
            )
        if policy.state != _SERVING:
            incarnation = (await self._runs.get(context.run_id)).incarnation
            await self._gateway.republish(context.run_id, context.alias, policy, incarnation)

    async def _wait(self, run_id: str, panels: list[str]) -> None:
        quiet = QuietTimer(self._clock)
        while True:
            ticket = self._changed.ticket()
            progress = [await self._work.panel_progress(run_id, panel) for panel in panels]
            if all(still_open == 0 for _, still_open in progress):
                return
            if await wait_for(ticket, _TICK_S):
                quiet.moved()
            elif quiet.due():
                await self._reconcile(run_id)
