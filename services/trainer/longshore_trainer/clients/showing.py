"""Progress on the way to the controller is shown on the trainer's Prometheus page too."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import Gauge

from longshore_common.step_metrics import StepGauges
from longshore_trainer.clients.controller import ProgressReporter
from longshore_trainer.domain.vocabulary import JobPhase
from longshore_trainer.training.status import JobStatus

_STEPS = StepGauges("trainer")
_PHASE = Gauge("longshore_trainer_phase", "1 for what the trainer does now", ["run", "phase"])


class ShowingReporter:
    """A ProgressReporter that sets the gauges before it passes a report on."""

    def __init__(self, run_id: str, reporter: ProgressReporter) -> None:
        self._run_id, self._reporter = run_id, reporter

    def report(
        self, *, step: int, total_steps: int, phase: str, metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> bool:
        _STEPS.show(self._run_id, step, metrics, seconds)
        return self._reporter.report(step=step, total_steps=total_steps, phase=phase, metrics=metrics, seconds=seconds)


def show_phase(status: JobStatus) -> None:
    """The page says what the job does at the moment it is read."""
    for phase in JobPhase:
        _PHASE.labels(status.run_id, phase.value).set_function(partial(_is_in, status, phase))


def _is_in(status: JobStatus, phase: JobPhase) -> float:
    return float(status.phase is phase)
