"""Prometheus metrics of the gateway."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from longshore_inference_gateway.domain.models import Turn

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300)

REQUESTS = Counter("longshore_gateway_requests", "HTTP calls of models that ended", ["status"])
TURNS = Counter("longshore_gateway_turns", "Captured turns", ["status"])
UNTRAINABLE = Counter("longshore_gateway_untrainable_turns", "Captured turns that may not be trained on")
TOKENS = Counter("longshore_gateway_tokens", "Tokens", ["kind"])
COALESCED = Counter("longshore_gateway_coalesced_requests", "Repeated requests that joined an earlier call")
TOTAL_SECONDS = Histogram("longshore_gateway_request_seconds", "A call from its body to its capture", buckets=_SECONDS)
ENGINE_SECONDS = Histogram("longshore_gateway_engine_seconds", "A call's time at the engine", buckets=_SECONDS)
QUEUE_SECONDS = Histogram("longshore_gateway_queue_seconds", "A call's wait for an engine", buckets=_SECONDS)
OVERHEAD_SECONDS = Histogram(
    "longshore_gateway_overhead_seconds", "A call's time that is neither engine nor queue", buckets=_SECONDS
)
PUBLISH_SECONDS = Histogram("longshore_gateway_publish_seconds", "PublishPolicy until every engine confirmed", ["kind"])
POLICY_VERSION = Gauge("longshore_gateway_policy_version", "Version that an alias points to", ["alias"])
SESSIONS = Gauge("longshore_gateway_open_sessions", "Open sessions")
IN_FLIGHT = Gauge("longshore_gateway_in_flight_calls", "Calls at engines")
QUEUED = Gauge("longshore_gateway_queued_calls", "Calls waiting for an engine")
ENGINES = Gauge("longshore_gateway_engines", "Engines by state", ["state"])
LOOP_LAG = Gauge("longshore_gateway_event_loop_lag_seconds", "How late the event loop ran a timer last")


def show_versions(current: Mapping[str, int | None]) -> None:
    """Where each alias points; one without a version, or retired, has none."""
    POLICY_VERSION.clear()
    for alias, version in current.items():
        if version is not None:
            POLICY_VERSION.labels(alias).set(version)


class PrometheusObserver:
    """A ChatObserver."""

    def answered(self, turn: Turn, *, total_s: float, engine_s: float, queued_s: float) -> None:
        """Counts a stored turn."""
        TURNS.labels(turn.status.value).inc()
        if not turn.trainable:
            UNTRAINABLE.inc()
        TOKENS.labels("prompt").inc(len(turn.prompt_ids))
        TOKENS.labels("completion").inc(len(turn.completion_ids))
        TOTAL_SECONDS.observe(total_s)
        ENGINE_SECONDS.observe(engine_s)
        QUEUE_SECONDS.observe(queued_s)
        OVERHEAD_SECONDS.observe(max(0.0, total_s - engine_s - queued_s))

    def failed(self, turn: Turn) -> None:
        """Counts an error turn."""
        TURNS.labels(turn.status.value).inc()

    def coalesced(self) -> None:
        """Counts a joined request."""
        COALESCED.inc()
