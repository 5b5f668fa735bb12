"""Prometheus metrics, prefix longshore_controller_. Gauges are read from the database, so that replicas agree."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from longshore_common.step_metrics import StepGauges

RUNS = Gauge("longshore_controller_runs", "Runs in each state", ["state"])
RUN_STATE = Gauge("longshore_controller_run_state", "1 for the state that a run is in", ["run", "state"])
RUN_STEP = Gauge("longshore_controller_run_step", "Last committed step of a run", ["run"])
RUN_TOTAL_STEPS = Gauge("longshore_controller_run_total_steps", "Steps that a run is to train", ["run"])
RUN_INCARNATION = Gauge("longshore_controller_run_incarnation", "Trainer jobs that a run has started", ["run"])
ATTEMPTS = Gauge("longshore_controller_attempts", "Attempts that wait for a worker or are leased", ["run", "state"])
STEPS = StepGauges("controller")
"""The trainer's figures: they stay when its job has ended."""

LEASES = Counter("longshore_controller_leases", "Leases granted", ["run", "purpose"])
EXPIRED = Counter("longshore_controller_leases_expired", "Leases whose worker went silent", ["run"])
LEASE_SECONDS = Histogram(
    "longshore_controller_lease_seconds", "Time to grant a batch of leases, seconds",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
)  # fmt: skip
LEASE_WAIT_SECONDS = Histogram(
    "longshore_controller_lease_wait_seconds", "Time that a worker with room waited for leases, seconds", ["granted"],
    buckets=(0.01, 0.1, 0.5, 1, 5, 10, 20, 40, 60),
)  # fmt: skip
RETRIES = Counter(
    "longshore_controller_attempt_failures", "Attempts that workers gave back", ["run", "failure", "will_retry"]
)
TRAINER_RESTARTS = Counter(
    "longshore_controller_trainer_restarts", "Trainer jobs that ended before their work was done", ["run", "kind"]
)

_OF_A_RUN = (RUN_STATE, RUN_STEP, RUN_TOTAL_STEPS, RUN_INCARNATION, ATTEMPTS)


def forget(run_id: str) -> None:
    """Takes a run's gauges off the page; counters stay, as Prometheus wants."""
    for gauge in _OF_A_RUN:
        gauge.remove_by_labels({"run": run_id})
    STEPS.forget(run_id)
