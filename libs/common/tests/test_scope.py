"""Ids and traces follow the calls: from whoever binds them, over gRPC, to log lines and spans of the next service."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as rpc
from longshore_common import log, scope, tracing
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import InvalidSpec
from longshore_common.grpc_client import call_sync, open_channel, sync_channel

SERVICE = "longshore.trajectory.v1.TrajectoryService"


class Store(rpc.TrajectoryServiceServicer):
    """Says what it does; asked for a group it asks the next store, if there is one."""

    def __init__(self, channel: grpc.aio.Channel | None = None) -> None:
        self._next = channel

    async def GetGroup(self, request: Any, context: Any) -> Any:
        log.get_logger("store").info("asked", group=request.group_id)
        if self._next is not None:
            return await rpc.TrajectoryServiceStub(self._next).GetGroup(request)
        return pb.GetGroupResponse()

    async def GetAttempt(self, request: Any, context: Any) -> Any:
        log.get_logger("store").info("asked")
        return pb.GetAttemptResponse()

    async def WatchSealed(self, request: Any, context: Any) -> Any:
        log.get_logger("store").info("watched")
        yield pb.WatchSealedResponse()


def app(name: str, channel: grpc.aio.Channel | None = None) -> App:
    def register(server: grpc.aio.Server) -> None:
        rpc.add_TrajectoryServiceServicer_to_server(Store(channel), server)

    return App(name, [GrpcEndpoint("127.0.0.1:0", (SERVICE,), register, None)])


@contextlib.asynccontextmanager
async def two_services() -> AsyncIterator[Any]:
    """The stub of one that asks another one."""
    async with (
        running(app("last")) as last,
        open_channel(last.grpc_addresses[0]) as behind,
        running(app("first", behind)) as first,
        open_channel(first.grpc_addresses[0]) as channel,
    ):
        yield rpc.TrajectoryServiceStub(channel)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    log.configure("info", json=True, stream=stream)
    yield stream
    structlog.reset_defaults()


def said(stream: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == event]


async def test_ids_go_from_log_line_to_log_line_through_two_services(lines: io.StringIO) -> None:
    async with two_services() as stub:
        with scope.bound(run="r1", attempt="a1"):
            await stub.GetGroup(pb.GetGroupRequest(group_id="g"))
        await stub.GetGroup(pb.GetGroupRequest(group_id="other"))
    shown = [(line["group"], line.get("run"), line.get("attempt")) for line in said(lines, "asked")]
    assert shown == [("g", "r1", "a1")] * 2 + [("other", None, None)] * 2


async def test_the_ids_of_a_request_are_bound_where_it_arrives(lines: io.StringIO) -> None:
    async with running(app("store")) as handle, open_channel(handle.grpc_addresses[0]) as channel:
        stub = rpc.TrajectoryServiceStub(channel)
        with scope.bound(attempt="mine", sandbox="sbx"):
            await stub.GetAttempt(pb.GetAttemptRequest(attempt_id="asked-for"))
        async for _ in stub.WatchSealed(pb.WatchSealedRequest(run_id="r2")):
            pass
    (asked,), (watched,) = said(lines, "asked"), said(lines, "watched")
    assert (asked["attempt"], asked["sandbox"]) == ("asked-for", "sbx")
    assert watched["run"] == "r2"


async def test_a_blocking_caller_sends_its_ids(lines: io.StringIO) -> None:
    async with running(app("store")) as handle:
        stub = rpc.TrajectoryServiceStub(sync_channel(handle.grpc_addresses[0]))
        with scope.bound(run="r3"):
            await asyncio.to_thread(call_sync, stub.GetGroup, pb.GetGroupRequest(group_id="g"))
    assert said(lines, "asked")[0]["run"] == "r3"


async def test_an_id_that_metadata_cannot_carry_does_not_break_the_call(lines: io.StringIO) -> None:
    async with running(app("store")) as handle, open_channel(handle.grpc_addresses[0]) as channel:
        with scope.bound(run="läuft", attempt="a1"):
            await rpc.TrajectoryServiceStub(channel).GetGroup(pb.GetGroupRequest(group_id="g"))
    assert "run" not in said(lines, "asked")[0]


class Collector(otlp_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                names = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scoped in resource.scope_spans:
                    self.spans += [(names["service.name"], span) for span in scoped.spans]
        return otlp.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server, kept = grpc.server(ThreadPoolExecutor(2)), Collector()
    otlp_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept, f"http://127.0.0.1:{port}"
    server.stop(None)


async def test_one_trace_passes_all_services_and_names_its_log_lines(
    collector: tuple[Collector, str], lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longshore_common.otel import OtelTracer

    kept, endpoint = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    tracer = OtelTracer.exporting("tests")
    tracing.use(tracer)
    try:
        async with two_services() as stub:
            for attempt in ("a1", "a2"):
                with scope.bound(run="r", attempt=attempt), tracing.span("attempt", run="r", attempt=attempt):
                    await stub.GetGroup(pb.GetGroupRequest(group_id="g"))
    finally:
        tracing.use(None)
        await asyncio.to_thread(tracer.close)
    spans = {
        name: [span for _, span in kept.spans if span.name == name] for _, one in kept.spans for name in [one.name]
    }
    assert {name: len(found) for name, found in spans.items()} == {
        "attempt": 2,
        "first.GetGroup": 2,
        "last.GetGroup": 2,
    }
    assert {service for service, _ in kept.spans} == {"tests"}
    for root in spans["attempt"]:
        first_call = next(s for s in spans["first.GetGroup"] if s.parent_span_id == root.span_id)
        last_call = next(s for s in spans["last.GetGroup"] if s.parent_span_id == first_call.span_id)
        assert first_call.trace_id == last_call.trace_id == root.trace_id
    assert {line["trace_id"] for line in said(lines, "asked")} == {root.trace_id.hex() for root in spans["attempt"]}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_standard_variables_turn_traces_on(environment: dict[str, str], expected: bool) -> None:
    assert tracing.wanted(environment) is expected


def test_traces_without_the_packages_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "longshore_common.otel", None)
    with pytest.raises(InvalidSpec, match=r"longshore\[tracing\]"):
        tracing.configure("tests")
