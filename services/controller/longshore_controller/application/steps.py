"""What trainers report."""

from __future__ import annotations

from longshore_controller.domain.records import StepRecord
from longshore_controller.domain.run_state import ACTIVE
from longshore_controller.domain.stores import NewEvent, RunStore
from longshore_controller.domain.vocabulary import EventKind, StepPhase


class StepService:
    """Keeps step metrics; a step reported twice is kept once."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs

    async def report(self, record: StepRecord) -> bool:
        """Stores the step; True when the trainer should stop.

        Raises:
            Conflict: an older incarnation reports.
        """
        is_new = await self._runs.record_step(record)
        if record.phase is StepPhase.TRAIN:
            # The trainer reports after CommitBatch: this step is done and its version is served.
            await self._runs.advance(record.run_id, record.step)
        if is_new:
            kind = EventKind.STEP if record.phase is StepPhase.TRAIN else EventKind.WARM_START
            data: dict[str, object] = {"step": record.step, "total_steps": record.total_steps, **record.metrics}
            await self._runs.append(record.run_id, NewEvent(kind, _summary(record), data))
        return (await self._runs.get(record.run_id)).state not in ACTIVE


def _summary(record: StepRecord) -> str:
    shown = [
        f"{key} {record.metrics[key]:.4g}" for key in ("solve_rate", "reward_mean", "loss") if key in record.metrics
    ]
    of = f"/{record.total_steps}" if record.total_steps else ""
    return " ".join([f"{record.phase} step {record.step}{of}", *shown])
