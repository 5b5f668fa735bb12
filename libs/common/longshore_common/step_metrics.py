"""A training step's figures as Prometheus gauges: the trainer shows its own, the controller those of every run.

The names are those that the trainer reports (`ReportStep`), so that a figure has one name everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Gauge
from prometheus_client.registry import REGISTRY, CollectorRegistry

STEP_METRICS: Mapping[str, str] = {
    "reward_mean": "Mean reward of the scored attempts of the newest step",
    "solve_rate": "Share of the scored attempts of the newest step with reward 1 or more",
    "groups": "Groups of the newest step",
    "zero_variance_groups": "Groups of the newest step whose rewards are all equal: nothing to learn from",
    "attempts_scored": "Scored attempts of the newest step",
    "attempts_failed": "Attempts of the newest step without a reward",
    "staleness_mean": "Mean lag of the newest step's attempts, in policy versions",
    "staleness_max": "Largest lag of the newest step's attempts, in policy versions",
    "loss": "Loss of the newest step",
    "entropy": "Mean entropy of trained tokens, nats",
    "kl": "Mean KL of trained tokens to the starting policy, nats",
    "mismatch_kl": "Mean KL between sampler and trainer before the update, nats",
    "mismatch_kl_max": "KL between sampler and trainer at the worst token, nats",
    "clip_fraction": "Share of trained tokens whose ratio was clipped",
    "clip_fraction_high": "Share of trained tokens clipped above: a good action could not be made likelier",
    "clip_fraction_low": "Share of trained tokens clipped below: a bad action could not be made less likely",
    "grad_norm": "Gradient norm before clipping",
    "learning_rate": "Learning rate of the newest step",
    "tokens": "Trained tokens of the newest step",
    "peak_rss_bytes": "Largest resident memory of the trainer's rank 0, bytes",
}
"""Reported key -> what it is. Keys that are not here are kept in the run's record, but are no metric."""


class StepGauges:
    """`longshore_<service>_step_<key>{run}` for each known key, `..._step_seconds{run,part}`, `..._step{run}`."""

    def __init__(self, service: str, registry: CollectorRegistry = REGISTRY) -> None:
        prefix = f"longshore_{service}_step"
        self._figures = {
            key: Gauge(f"{prefix}_{key}", text, ["run"], registry=registry) for key, text in STEP_METRICS.items()
        }
        self._seconds = Gauge(
            f"{prefix}_seconds", "Seconds of the newest step by part; forward, backward, optimizer lie in train",
            ["run", "part"], registry=registry,
        )  # fmt: skip
        self._number = Gauge(f"{prefix}_number", "Newest step that was reported", ["run"], registry=registry)

    def show(self, run: str, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Sets the gauges of a run to one step's figures."""
        self._number.labels(run).set(step)
        for key, gauge in self._figures.items():
            if key in metrics:
                gauge.labels(run).set(metrics[key])
        for part, value in seconds.items():
            self._seconds.labels(run, part).set(value)

    def forget(self, run: str) -> None:
        """Takes a run's figures off the page, so that the page does not grow with every run."""
        for gauge in (self._number, *self._figures.values()):
            gauge.remove_by_labels({"run": run})
        self._seconds.remove_by_labels({"run": run})
