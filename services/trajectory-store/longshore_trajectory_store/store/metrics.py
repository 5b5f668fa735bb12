"""Prometheus metrics of the store; all names start with longshore_trajectory_."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from longshore_trajectory_store.domain.attempts import Attempt
from longshore_trajectory_store.domain.batches import Batch
from longshore_trajectory_store.domain.outcomes import Failed, Scored

TURNS = Counter("longshore_trajectory_turns", "Turns appended, by status", ["status"])
TURN_BYTES = Counter("longshore_trajectory_turn_bytes", "Bytes of turns written, compressed")
APPEND_BATCH = Histogram(
    "longshore_trajectory_append_batch", "Turns per append transaction", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
APPEND_SECONDS = Histogram(
    "longshore_trajectory_append_seconds",
    "From an append's arrival to its commit, seconds",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
)
SEALED = Counter("longshore_trajectory_sealed", "Attempts sealed", ["run", "purpose", "kind", "label"])
DISCARDED = Counter("longshore_trajectory_discarded", "Attempts discarded, by reason", ["run", "reason"])
REFUSED = Counter("longshore_trajectory_refused", "Writes refused: an older epoch or other content", ["what"])
GROUPS = Gauge("longshore_trajectory_groups", "Training groups of a run that is not closed, by state", ["run", "state"])
LAG = Gauge(
    "longshore_trajectory_lag",
    "How far attempts are behind the trainer, in policy versions; in_flight: being sampled, in_queue: could be taken",
    ["run", "where", "stat"],
)
GROUPS_TAKEN = Counter("longshore_trajectory_groups_taken", "Groups given to a trainer, each batch counted once")
STALENESS = Histogram(
    "longshore_trajectory_staleness", "Lag of attempts when taken, in versions", buckets=(0, 1, 2, 4, 8, 16)
)


def count_sealed(attempt: Attempt) -> None:
    """Counts a sealed attempt by its outcome."""
    outcome = attempt.outcome
    if isinstance(outcome, Scored):
        SEALED.labels(attempt.run_id, attempt.purpose, "scored", outcome.termination).inc()
    elif isinstance(outcome, Failed):
        SEALED.labels(attempt.run_id, attempt.purpose, "failed", outcome.failure).inc()


def forget(run_id: str) -> None:
    """Takes a run's gauges off the page."""
    for gauge in (GROUPS, LAG):
        gauge.remove_by_labels({"run": run_id})


def count_taken(batch: Batch) -> None:
    """Counts a new batch and the lag of what is trained on in it."""
    GROUPS_TAKEN.inc(len(batch.groups))
    for group in batch.groups:
        for attempt in group.attempts:
            if attempt.reward is not None:
                STALENESS.observe(attempt.staleness)
