"""Prometheus metrics of an engine host. vLLM serves its own on its port."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from longshore_inference_gateway.engine_host.host import State

STATE = Gauge("longshore_engine_host_state", "1 for the state that the host is in", ["state"])
FAILURES = Counter("longshore_engine_host_failures", "Engines that did not start or ended by themselves")
START_SECONDS = Histogram(
    "longshore_engine_host_start_seconds",
    "vLLM from its order to its first good health answer",
    buckets=(2, 5, 10, 30, 60, 120, 300, 600, 1800),
)


def show(state: State) -> None:
    """Sets the gauge."""
    for other in State:
        STATE.labels(other.value).set(other is state)


def changed(old: State, new: State, seconds: float) -> None:
    """Counts a change of state; seconds: time spent in the old one."""
    show(new)
    if new is State.FAILED:
        FAILURES.inc()
    if (old, new) == (State.STARTING, State.READY):
        START_SECONDS.observe(seconds)
