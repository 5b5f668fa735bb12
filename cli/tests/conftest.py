"""Fixtures of the command line's tests: a command runner, the sample report, a fake controller on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from longshore.controller.v1 import controller_pb2, controller_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import Conflict, InvalidSpec, NotFound

DATA = Path(__file__).parent / "data"


def make_run(run_id: str = "run-1", state: int = controller_pb2.RUN_STATE_TRAINING) -> controller_pb2.Run:
    """A run in the middle of its life."""
    run = controller_pb2.Run(
        run_id=run_id, name="demo", state=state, step=3, total_steps=15, policy_version=3, plan_digest="sha256:ab"
    )
    run.counts.planned, run.counts.scored, run.counts.open = 10, 7, 3
    run.metrics["solve_rate"] = 0.5
    return run


class FakeController(controller_pb2_grpc.ControllerServiceServicer):
    """Keeps runs in a dictionary."""

    address = ""

    def __init__(self) -> None:
        self.runs = {"run-1": make_run()}
        self.submitted: list[controller_pb2.SubmitRunRequest] = []
        self.events: list[controller_pb2.Event] = []
        self.report: dict[str, Any] = {}
        self.hang = False

    def _run(self, name: str) -> controller_pb2.Run:
        if name not in self.runs:
            raise NotFound(f"no run {name}: list them with `longshore run list`")
        return self.runs[name]

    async def SubmitRun(self, request: Any, context: Any) -> controller_pb2.SubmitRunResponse:
        self.submitted.append(request)
        if "algorthm" in request.spec_yaml:
            raise InvalidSpec("the run spec has a problem: unknown key 'algorthm', did you mean 'algorithm'?")
        run = make_run("run-2", controller_pb2.RUN_STATE_PENDING)
        run.plan_json = json.dumps({"dataset_digest": "sha256:cd", "tasks": {"train": ["sha256:1"]}})
        if not request.dry_run:
            self.runs["run-2"] = run
        return controller_pb2.SubmitRunResponse(run=run, created=not request.dry_run)

    async def GetRun(self, request: Any, context: Any) -> controller_pb2.GetRunResponse:
        return controller_pb2.GetRunResponse(run=self._run(request.run))

    async def ListRuns(self, request: Any, context: Any) -> controller_pb2.ListRunsResponse:
        ids = sorted(self.runs)
        at = int(request.page_token or 0)
        after = str(at + 1) if at + 1 < len(ids) else ""
        return controller_pb2.ListRunsResponse(runs=[self.runs[ids[at]]], next_page_token=after)

    async def StopRun(self, request: Any, context: Any) -> controller_pb2.StopRunResponse:
        run = self._run(request.run)
        if run.state == controller_pb2.RUN_STATE_SUCCEEDED:
            raise Conflict(f"run {run.run_id} is succeeded and cannot become stopped")
        run.state, run.state_reason = controller_pb2.RUN_STATE_STOPPED, request.reason
        return controller_pb2.StopRunResponse(run=run)

    async def ResumeRun(self, request: Any, context: Any) -> controller_pb2.ResumeRunResponse:
        run = self._run(request.run)
        run.state = controller_pb2.RUN_STATE_PENDING
        return controller_pb2.ResumeRunResponse(run=run)

    async def WatchEvents(self, request: Any, context: Any) -> AsyncIterator[controller_pb2.WatchEventsResponse]:
        for event in self.events:
            if event.sequence > request.after:
                yield controller_pb2.WatchEventsResponse(event=event)
        while self.hang:
            await asyncio.sleep(0.05)

    async def GetReport(self, request: Any, context: Any) -> controller_pb2.GetReportResponse:
        self._run(request.run)
        return controller_pb2.GetReportResponse(report_json=json.dumps(self.report))


@contextlib.contextmanager
def serve_in_thread(fake: FakeController, secret: str) -> Iterator[str]:
    """Serves until the block ends; yields host:port. A thread, because commands run an event loop of their own."""
    ready, ended = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        name = "longshore.controller.v1.ControllerService"
        endpoint = GrpcEndpoint(
            "127.0.0.1:0",
            (name,),
            lambda server: controller_pb2_grpc.add_ControllerServiceServicer_to_server(fake, server),
            secret,
        )
        async with running(App(name="controller", grpc=[endpoint])) as handle:
            address.append(handle.grpc_addresses[0])
            ready.set()
            await asyncio.to_thread(ended.wait)
            fake.hang = False

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10), "the fake controller did not start"
    try:
        yield address[0]
    finally:
        ended.set()
        thread.join(10)


@pytest.fixture
def report() -> dict[str, Any]:
    """A report as the controller writes it, with the demo's capture check."""
    value: dict[str, Any] = json.loads((DATA / "report.json").read_text())
    return value


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs `longshore ARGS` in an empty folder, without settings from the environment."""
    for name in ("LONGSHORE_HOME", "LONGSHORE_SERVER", "LONGSHORE_SECRET", "LONGSHORE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **keywords: Any) -> Result:
        from longshore_cli.main import app

        return CliRunner().invoke(app, list(arguments), **keywords)

    return run


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    """A fake controller that checks the secret; commands find it by LONGSHORE_SERVER."""
    fake = FakeController()
    with serve_in_thread(fake, "controller-secret") as address:
        fake.address = address
        yield fake
