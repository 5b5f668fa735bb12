"""An attempt is one trace, whichever service it is in, and its ids are on every span."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from longshore_common import tracing
from longshore_common.otel import OtelTracer


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.use(OtelTracer("tests", SimpleSpanProcessor(exporter)))
    yield exporter
    tracing.use(None)


def attempts(spans: InMemorySpanExporter) -> dict[str, int]:
    """Attempt -> trace, of attempts that have ended, cleanup included."""
    roots = (span for span in spans.get_finished_spans() if span.name == "attempt")
    return {root.attributes["longshore.attempt"]: root.context.trace_id for root in roots}


async def test_each_attempt_is_one_trace_through_all_services(
    stack: Any, wait_until: Any, spans: InMemorySpanExporter
) -> None:
    for attempt in ("g-0", "g-1"):
        stack.add(attempt)
    await stack.start(capacity=2)
    await wait_until(lambda: set(attempts(spans)) == {"g-0", "g-1"})
    traces = attempts(spans)
    assert len(set(traces.values())) == 2
    for attempt, trace in traces.items():
        own = [span for span in spans.get_finished_spans() if span.context.trace_id == trace]
        assert {"attempt", "start", "agent", "verify"} <= {span.name for span in own}
        called = {span.name.rpartition(".")[2]: span for span in own if "." in span.name}
        assert {"ClaimSandbox", "OpenSession", "Verify", "Seal", "Complete"} <= set(called)
        assert {span.attributes["longshore.attempt"] for span in called.values()} == {attempt}
        assert called["Verify"].attributes["longshore.sandbox"] == f"sb-{attempt}-1"


async def test_calls_of_the_model_carry_the_trace(stack: Any, wait_until: Any, spans: InMemorySpanExporter) -> None:
    stack.add("g-0")
    await stack.start()
    await wait_until(lambda: attempts(spans))
    assert stack.gateway.headers
    for headers in stack.gateway.headers:
        assert headers["traceparent"].split("-")[1] == f"{attempts(spans)['g-0']:032x}"


async def test_without_a_collector_calls_carry_no_trace(stack: Any) -> None:
    stack.add("g-0")
    await stack.start()
    await stack.ended(1)
    assert stack.gateway.headers
    assert all("traceparent" not in headers for headers in stack.gateway.headers)
