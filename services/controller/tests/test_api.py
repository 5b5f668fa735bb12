"""REST and gRPC faces over one application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from longshore.controller.v1 import controller_pb2 as pb
from longshore.controller.v1 import controller_pb2_grpc as rpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import Conflict, InvalidSpec, NotFound, PermissionDenied
from longshore_common.grpc_client import mapped_stream, open_channel
from longshore_controller.api.rest import make_rest
from longshore_controller.api.servicer import ControllerServicer

from .builders import SPEC
from .conftest import Harbor, Living

AUTH = {"authorization": "Bearer s"}


@pytest.fixture
async def living(harbor: Harbor) -> AsyncIterator[Living]:
    async with harbor.controller() as found:
        yield found


@pytest.fixture
async def rest(living: Living) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_rest(living.parts.application, "s"))
    async with httpx.AsyncClient(transport=transport, base_url="http://controller", headers=AUTH) as client:
        yield client


async def test_rest_life_of_a_run(rest: httpx.AsyncClient, living: Living) -> None:
    dry = await rest.post("/v1/runs", params={"dry_run": "true"}, content=SPEC)
    assert dry.status_code == 200
    assert dry.json()["run"]["plan"]["attempts"]["total"] == 34
    assert (await rest.get("/v1/runs")).json()["runs"] == []
    made = await rest.post("/v1/runs", content=SPEC, headers={"idempotency-key": "k"})
    assert made.status_code == 201
    again = await rest.post("/v1/runs", content=SPEC, headers={"idempotency-key": "k"})
    assert (again.status_code, again.json()["created"]) == (200, False)
    run_id = made.json()["run"]["run_id"]
    await living.until(run_id)
    found = (await rest.get("/v1/runs/demo")).json()["run"]
    assert (found["run_id"], found["state"], found["step"]) == (run_id, "succeeded", 3)
    assert found["attempts"]["scored"] == 12
    assert [run["run_id"] for run in (await rest.get("/v1/runs")).json()["runs"]] == [run_id]
    events = (await rest.get(f"/v1/runs/{run_id}/events", params={"after": 0})).json()["events"]
    assert events[0]["kind"] == "run.state"
    later = (await rest.get(f"/v1/runs/{run_id}/events", params={"after": events[0]["sequence"]})).json()["events"]
    assert later == events[1:]
    report = (await rest.get(f"/v1/runs/{run_id}/report")).json()
    assert report["run"]["state"] == "succeeded"


async def test_rest_event_stream_ends_with_the_run(rest: httpx.AsyncClient, living: Living) -> None:
    run_id = (await rest.post("/v1/runs", content=SPEC)).json()["run"]["run_id"]
    stream = await rest.get(f"/v1/runs/{run_id}/events", headers={"accept": "text/event-stream"})
    assert stream.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in stream.text.split("\n\n") if block]
    last = dict(line.split(": ", 1) for line in blocks[-1].split("\n"))
    assert json.loads(last["data"])["data"] == {"state": "succeeded"}
    resumed = await rest.get(
        f"/v1/runs/{run_id}/events", headers={"accept": "text/event-stream", "last-event-id": last["id"]}
    )
    assert resumed.text == ""


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/runs/nothing", "", 404, "not_found"),
        ("GET", "/v1/runs/nothing/events", "", 404, "not_found"),
        ("GET", "/v1/runs/nothing/report", "", 404, "not_found"),
        ("POST", "/v1/runs/nothing/stop", "", 404, "not_found"),
        ("POST", "/v1/runs", "name: x\n", 400, "invalid_spec"),
        ("POST", "/v1/runs", "[", 400, "invalid_spec"),
        ("GET", "/v1/runs?page_size=many", "", 400, "invalid_spec"),
        ("GET", "/v2", "", 404, "not_found"),
    ],
)
async def test_rest_errors_have_one_shape(
    rest: httpx.AsyncClient, method: str, path: str, body: str, status: int, code: str
) -> None:
    answer = await rest.request(method, path, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert isinstance(error["details"], dict)


async def test_rest_needs_the_secret(rest: httpx.AsyncClient) -> None:
    wrong = await rest.get("/v1/runs", headers={"authorization": "Bearer x"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (403, "permission_denied")
    assert (await rest.get("/healthz", headers={"authorization": ""})).json() == {"status": "ok"}


async def test_rest_stop_of_an_ended_run_is_a_conflict(rest: httpx.AsyncClient, living: Living) -> None:
    run_id = (await rest.post("/v1/runs", content=SPEC)).json()["run"]["run_id"]
    await living.until(run_id)
    answer = await rest.post(f"/v1/runs/{run_id}/stop")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


@pytest.fixture
async def stub(living: Living) -> AsyncIterator[rpc.ControllerServiceStub]:
    servicer = ControllerServicer(living.parts.application)
    name = "longshore.controller.v1.ControllerService"
    endpoint = GrpcEndpoint(
        "127.0.0.1:0", (name,), lambda server: rpc.add_ControllerServiceServicer_to_server(servicer, server), "s"
    )
    async with running(App("controller", [endpoint])) as handle:
        channel = open_channel(handle.grpc_addresses[0], "s")
        yield rpc.ControllerServiceStub(channel)
        await channel.close()


async def test_grpc_life_of_a_run(stub: rpc.ControllerServiceStub) -> None:
    run = (await stub.SubmitRun(pb.SubmitRunRequest(spec_yaml=SPEC))).run
    request = pb.WatchEventsRequest(run=run.run_id, until_done=True)
    events = [answer.event async for answer in mapped_stream(stub.WatchEvents(request))]
    assert json.loads(events[-1].data_json) == {"state": "succeeded"}
    ended = (await stub.GetRun(pb.GetRunRequest(run=run.run_id))).run
    assert ended.state == pb.RUN_STATE_SUCCEEDED
    assert ended.counts.scored == 12
    assert ended.metrics["loss"] == pytest.approx(0.3)
    report = json.loads((await stub.GetReport(pb.GetReportRequest(run="demo"))).report_json)
    assert report["run"]["run_id"] == run.run_id


async def test_grpc_report_step_of_an_old_incarnation_is_refused(
    stub: rpc.ControllerServiceStub, living: Living
) -> None:
    run = await living.submit(SPEC)
    await living.until(run.run_id)
    old = pb.ReportStepRequest(run_id=run.run_id, incarnation=1, step=9, phase="train", metrics={"loss": 9.0})
    with pytest.raises(Conflict, match="is the newest"):
        await stub.ReportStep(old)
    current, _ = await living.parts.application.queries.get(run.run_id)
    assert current.step == 3
    late = pb.ReportStepRequest(run_id=run.run_id, incarnation=current.incarnation, step=3, phase="train")
    assert (await stub.ReportStep(late)).stop is True
    with pytest.raises(InvalidSpec, match="unknown phase"):
        await stub.ReportStep(pb.ReportStepRequest(run_id=run.run_id, phase="cooking"))


async def test_grpc_errors(stub: rpc.ControllerServiceStub, living: Living) -> None:
    with pytest.raises(NotFound):
        await stub.GetRun(pb.GetRunRequest(run="nothing"))
    with pytest.raises(InvalidSpec) as caught:
        await stub.SubmitRun(pb.SubmitRunRequest(spec_yaml=SPEC.replace("preset: grpo", "preset: gpro")))
    assert caught.value.field == "algorithm.preset"


async def test_grpc_needs_the_secret(stub: rpc.ControllerServiceStub, living: Living) -> None:
    servicer = ControllerServicer(living.parts.application)
    endpoint = GrpcEndpoint(
        "127.0.0.1:0", ("x",), lambda server: rpc.add_ControllerServiceServicer_to_server(servicer, server), "s"
    )
    async with running(App("controller", [endpoint])) as handle:
        channel = open_channel(handle.grpc_addresses[0], "wrong")
        with pytest.raises(PermissionDenied):
            await rpc.ControllerServiceStub(channel).ListRuns(pb.ListRunsRequest())
        await channel.close()
