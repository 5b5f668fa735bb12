"""Prometheus metrics of the long polls."""

from __future__ import annotations

from prometheus_client import Histogram

TAKE_WAIT = Histogram(
    "longshore_trajectory_take_wait_seconds",
    "Time that TakeBatch waited, seconds",
    buckets=(0.01, 0.1, 1, 5, 20, 60, 300),
)
