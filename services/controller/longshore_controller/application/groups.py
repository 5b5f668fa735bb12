"""Creates groups: in the trajectory store, which owns them, then in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longshore_controller.domain.planner import GroupPlan
from longshore_controller.domain.ports import Trajectory
from longshore_controller.domain.stores import NewEvent, RunStore, WorkStore
from longshore_controller.domain.vocabulary import EventKind

_AT_ONCE = 32


class GroupCreator:
    """Both writes are idempotent; a crash in between is mended by doing it again."""

    def __init__(self, runs: RunStore, work: WorkStore, trajectory: Trajectory) -> None:
        self._runs = runs
        self._work = work
        self._trajectory = trajectory

    async def create(self, plans: Sequence[GroupPlan]) -> None:
        """Creates the groups and queues their attempts. Raises Conflict when the run is closed."""
        if not plans:
            return
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(plan: GroupPlan) -> None:
            async with gate:
                await self._trajectory.create_group(plan)

        await asyncio.gather(*(one(plan) for plan in plans))
        await self._work.add_groups(plans)
        for plan in plans:
            if plan.refill:
                message = f"group {plan.group_id} refills training slot {plan.ordinal} of step {plan.step}"
                data = {"group": plan.group_id, "slot": plan.ordinal, "refill": plan.refill}
                await self._runs.append(plan.run_id, NewEvent(EventKind.REFILL, message, data))

    async def create_panel(self, panel: str, plans: Sequence[GroupPlan]) -> None:
        """An evaluation panel, with its event."""
        await self.create(plans)
        first = plans[0]
        message = f"panel {panel}: {len(plans)} tasks, version {first.pinned_version}, {first.size} attempts each"
        data = {"panel": panel, "tasks": len(plans), "version": first.pinned_version}
        await self._runs.append(first.run_id, NewEvent(EventKind.EVAL, message, data))
