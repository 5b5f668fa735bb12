"""The trainer's Prometheus page while its job runs."""

from prometheus_client import REGISTRY

from longshore_trainer.clients.controller import SilentReporter
from longshore_trainer.clients.showing import ShowingReporter, show_phase
from longshore_trainer.domain.vocabulary import JobPhase
from longshore_trainer.training.status import JobStatus


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"longshore_trainer_{name}", {"run": "shown"} | labels)


def test_a_reported_step_is_on_the_page_with_its_parts() -> None:
    reporter = ShowingReporter("shown", SilentReporter())
    metrics = {"reward_mean": 0.25, "mismatch_kl_max": 0.5, "not_a_metric": 1.0}
    assert not reporter.report(step=7, total_steps=9, phase="train", metrics=metrics, seconds={"forward": 2.0})
    assert (value("step_number"), value("step_reward_mean"), value("step_mismatch_kl_max")) == (7, 0.25, 0.5)
    assert value("step_seconds", part="forward") == 2.0
    assert value("step_not_a_metric") is None


def test_the_page_says_what_the_job_does_now() -> None:
    status = JobStatus("shown", 1)
    show_phase(status)
    assert value("phase", phase="loading") == 1
    status.enter(JobPhase.CHECKPOINTING)
    assert (value("phase", phase="loading"), value("phase", phase="checkpointing")) == (0, 1)
