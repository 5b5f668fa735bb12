"""The data port goes on with the caller's trace, and says itself what a call belongs to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_harness import Gateway
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from longshore_common import tracing
from longshore_common.otel import OtelTracer
from longshore_inference_gateway.metrics import show_versions

MESSAGES = [{"role": "user", "content": "Count the lines"}]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.use(OtelTracer("tests", SimpleSpanProcessor(exporter)))
    yield exporter
    tracing.use(None)


async def test_a_call_and_its_append_are_in_the_callers_trace(
    gateway: Gateway, model_dir: Path, spans: InMemorySpanExporter
) -> None:
    await gateway.publish(model_dir, 0)
    session = await gateway.open("a-0")
    forged = {"longshore-attempt": "somebody-else", "longshore-run": "other"}
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"} | forged
    status, _ = await gateway.chat(session.token, MESSAGES, headers=headers)
    assert status == 200
    inside = [span for span in spans.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]
    names = {span.name.rpartition(".")[2] for span in inside}
    assert names == {"completions", "AppendTurn"}
    for span in inside:
        assert (span.attributes["longshore.run"], span.attributes["longshore.attempt"]) == ("run-1", "a-0")


def test_a_retired_alias_leaves_the_page() -> None:
    def version(alias: str) -> float | None:
        return REGISTRY.get_sample_value("longshore_gateway_policy_version", {"alias": alias})

    show_versions({"one": 3, "empty": None})
    assert (version("one"), version("empty")) == (3, None)
    show_versions({})
    assert version("one") is None
