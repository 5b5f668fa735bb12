"""Prometheus metrics, prefix longshore_controller_. Read from the database when asked, so that replicas agree."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

RUNS = Gauge("longshore_controller_runs", "Runs in each state", ["state"])
ATTEMPTS = Gauge("longshore_controller_attempts", "Attempts waiting or leased", ["state"])
STEP = Gauge("longshore_controller_run_step", "Last committed step of a run", ["run"])
LEASES = Counter("longshore_controller_leases", "Leases granted", ["purpose"])
EXPIRED = Counter("longshore_controller_leases_expired", "Leases whose worker went silent")
LEASE_SECONDS = Histogram(
    "longshore_controller_lease_seconds", "Time to grant a batch of leases, seconds",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
)  # fmt: skip
RETRIES = Counter("longshore_controller_attempt_failures", "Attempts that workers gave back", ["failure", "will_retry"])
