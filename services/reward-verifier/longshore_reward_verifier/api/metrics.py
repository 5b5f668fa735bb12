"""Prometheus metrics of the verifier."""

from prometheus_client import Counter, Gauge, Histogram

VERDICTS = Counter("longshore_verifier_verdicts", "Verdicts: scored, agent_broke_verifier, or a failure", ["result"])
REGRADES = Counter("longshore_verifier_regrades", "Re-grades in fresh conditions, by the first failure", ["failure"])
IN_FLIGHT = Gauge("longshore_verifier_in_flight", "Verify calls that are running or waiting")
SECONDS = Histogram(
    "longshore_verifier_seconds",
    "Wall time of Verify, seconds",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60, 300, 1200),
)
