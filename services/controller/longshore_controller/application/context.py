"""What is fixed about a run once it is submitted: its plan and tasks, read once and kept."""

from __future__ import annotations

from dataclasses import dataclass

from longshore_controller.domain.plan import ResolvedPlan
from longshore_controller.domain.records import RunTask
from longshore_controller.domain.stores import RunStore

_KEPT = 64


@dataclass(frozen=True)
class RunContext:
    """A run's immutable part."""

    run_id: str
    alias: str
    plan: ResolvedPlan
    tasks: dict[str, RunTask]


class RunContexts:
    """Contexts by run id, read from the store on first use."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._kept: dict[str, RunContext] = {}

    async def get(self, run_id: str) -> RunContext:
        """The context of a run. Raises NotFound."""
        if run_id not in self._kept:
            run = await self._runs.get(run_id)
            tasks = await self._runs.tasks(run_id)
            if len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[run_id] = RunContext(
                run_id=run.run_id,
                alias=run.alias,
                plan=ResolvedPlan.model_validate_json(run.plan_json),
                tasks={task.digest: task for task in tasks},
            )
        return self._kept[run_id]
