"""Prometheus metrics of the worker."""

from prometheus_client import Counter, Gauge, Histogram

ENDS = Counter(
    "longshore_rollout_attempts",
    "Leases that ended here, by domain.vocabulary.AttemptEnd",
    ["end"],
)
RUNNING = Gauge("longshore_rollout_running", "Attempts that run now")
PHASES = Histogram(
    "longshore_rollout_phase_seconds",
    "Wall time of an attempt's phases (start, agent, verify), seconds",
    ["phase"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60, 300, 1200, 3600),
)
