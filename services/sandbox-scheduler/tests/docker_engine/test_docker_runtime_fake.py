"""The docker runtime over a faked engine: broken events, an engine that goes away, errors of builds and pulls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from docker_engine.fake_engine import FakeEngine, serving

from longshore_common.bundle import pack_folder
from longshore_common.clock import SystemClock
from longshore_common.errors import Conflict, InvalidSpec, LongshoreError, Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Limits, TaskEnvironment, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.runtimes.docker.agent_volume import AgentVolume
from longshore_sandbox_scheduler.runtimes.docker.container_spec import ContainerOptions
from longshore_sandbox_scheduler.runtimes.docker.docker_runtime import DockerRuntime, DockerRuntimeOptions
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineOptions
from longshore_sandbox_scheduler.runtimes.docker.exec_carrier import ExecCarrier
from longshore_sandbox_scheduler.runtimes.docker.images import DockerImageOptions, DockerImages
from longshore_sandbox_scheduler.runtimes.tunnels import Tunnels

TEMPLATE = Template(Image("sha256:i", reference="sha256:i"), Limits(1.0, 64, 64, 32, 16))
TAG = ClaimTag("run", "", "", "", 60.0)
TAGGED = "/images/localhost/longshore/environment:0123/json"


class AnswersAtOnce:
    """`AgentProber` of agents that nobody started."""

    async def answers(self, address: str, sandbox_id: str, instance: str) -> None:
        return


def _images(api: EngineApi, folder: Path) -> DockerImages:
    return DockerImages(api, DockerImageOptions(), "me", folder / "builds")


def _runtime(api: EngineApi, folder: Path, **options: Any) -> DockerRuntime:
    return DockerRuntime(
        api,
        _images(api, folder),
        AgentVolume(api, b"agent", "me"),
        Tunnels(ExecCarrier(api, ("connect",))),
        AnswersAtOnce(),
        SystemClock(),
        ContainerOptions("key", "me"),
        DockerRuntimeOptions(**options),
        folder,
    )


@asynccontextmanager
async def started(engine: FakeEngine, folder: Path, **options: Any) -> AsyncIterator[DockerRuntime]:
    async with serving(engine, folder) as api:
        runtime = _runtime(api, folder, **options)
        await runtime.start()
        try:
            await engine.listening.wait()
            yield runtime
        finally:
            await runtime.stop()


async def _end(ended: Awaitable[SandboxEnd]) -> SandboxEnd:
    async with asyncio.timeout(10):
        return await ended


async def test_an_end_that_an_event_tells(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with started(engine, tmp_path) as runtime:
        sandbox = await runtime.launch("sandbox-1", TEMPLATE, TAG)
        engine.end("sandbox-1", ExitCode=137, OOMKilled=True)
        engine.tell("die", "sandbox-1")
        assert (await _end(sandbox.ended)).reason is EndReason.OOM
        found = await runtime.find("sandbox-1", sandbox.instance)
        assert isinstance(found, SandboxEnd)
        while "sandbox-1" in engine.containers:
            await asyncio.sleep(0.01)


async def test_an_end_while_the_events_were_broken_is_seen(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with started(engine, tmp_path) as runtime:
        one = await runtime.launch("sandbox-1", TEMPLATE, TAG)
        two = await runtime.launch("sandbox-2", TEMPLATE, TAG)
        engine.containers.pop("sandbox-1")
        engine.break_events()
        assert (await _end(one.ended)).reason is EndReason.DELETED
        assert not two.ended.done()


async def test_an_engine_that_is_gone_has_lost_its_sandboxes(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with started(engine, tmp_path, ping_s=0.05, engine_lost_s=0.2) as runtime:
        sandbox = await runtime.launch("sandbox-1", TEMPLATE, TAG)
        engine.away = True
        end = await _end(sandbox.ended)
        assert end.reason is EndReason.NODE_LOST
        assert "has not answered" in end.detail
        engine.away = False


async def test_a_short_absence_loses_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with started(engine, tmp_path, ping_s=0.05, engine_lost_s=30) as runtime:
        sandbox = await runtime.launch("sandbox-1", TEMPLATE, TAG)
        engine.away = True
        engine.break_events()
        await asyncio.sleep(0.3)
        engine.away = False
        async with asyncio.timeout(10):
            await engine.listening.wait()
        assert not sandbox.ended.done()
        engine.end("sandbox-1")
        engine.tell("died", "sandbox-1")
        assert (await _end(sandbox.ended)).reason is EndReason.LOST


async def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.answers[("POST", "/containers/sandbox-1/start")] = (500, {"message": "exec format error"})
    async with started(engine, tmp_path) as runtime:
        with pytest.raises(SandboxFailed, match="exec format error") as failed:
            await runtime.launch("sandbox-1", TEMPLATE, TAG)
        assert failed.value.reason is EndReason.START_FAILED
        assert not engine.containers
        assert runtime.population == 0


async def test_without_an_engine_the_start_says_what_to_do(tmp_path: Path) -> None:
    engine = FakeEngine(away=True)
    async with serving(engine, tmp_path) as api:
        with pytest.raises(Unavailable, match="DOCKER_HOST"):
            await _runtime(api, tmp_path).start()


async def test_two_schedulers_of_one_folder(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with started(engine, tmp_path):
        api = await EngineApi.open(EngineOptions(f"unix://{tmp_path}/engine.sock"))
        with pytest.raises(Conflict, match="another scheduler"):
            await _runtime(api, tmp_path).start()
        await api.close()


@pytest.mark.parametrize(("theirs", "asked"), [("1.41", "/v1.41/info"), ("1.99", "/v1.44/info")])
async def test_the_api_version_is_agreed_on(tmp_path: Path, theirs: str, asked: str) -> None:
    engine = FakeEngine(api_version=theirs)
    paths: list[str] = []
    handle = engine.handle

    async def noting(request: Any) -> Any:
        paths.append(request.path)
        return await handle(request)

    engine.handle = noting  # type: ignore[method-assign]
    async with serving(engine, tmp_path) as api:
        await api.connect()
    assert paths[-1] == asked


# -- images


def _task(folder: Path, dockerfile: str = "FROM base\nRUN false\n", **fields: Any) -> tuple[TaskEnvironment, Any]:
    root = folder / "task"
    (root / "environment").mkdir(parents=True)
    (root / "environment" / "Dockerfile").write_text(dockerfile)
    (root / "task.toml").write_text("")
    data = pack_folder(root)

    async def bundle() -> bytes:
        return data

    values: dict[str, Any] = {"digest": "sha256:task", "environment_digest": "sha256:0123", "build_timeout_s": 10.0}
    return TaskEnvironment(limits=Limits(), **{**values, **fields}), bundle


def _absent(engine: FakeEngine, path: str) -> None:
    engine.answers[("GET", path)] = (404, {"message": "No such image"})


async def test_a_failed_build_names_the_line_and_keeps_the_log(tmp_path: Path) -> None:
    engine = FakeEngine()
    _absent(engine, TAGGED)
    # As Docker's builder says it.
    engine.answers[("POST", "/build")] = (
        200,
        [
            {"stream": "Step 1/2 : FROM base\n"},
            {"stream": "Step 2/2 : RUN false\n"},
            {"stream": "boom\n"},
            {"errorDetail": {"code": 1}, "error": "The command '/bin/sh -c false' returned a non-zero code: 1"},
        ],
    )
    task, bundle = _task(tmp_path)
    async with serving(engine, tmp_path) as api:
        with pytest.raises(InvalidSpec, match=r"environment/Dockerfile:2: .*non-zero code: 1(.|\n)*boom"):
            await _images(api, tmp_path).prepare(task, bundle)
    log = (tmp_path / "builds" / "0123.log").read_text()
    assert "boom" in log
    assert "non-zero code" in log


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("dial tcp: lookup registry.example: no such host", Unavailable),
        ("pull access denied for base, repository does not exist", InvalidSpec),
    ],
)
async def test_a_base_that_cannot_be_had(tmp_path: Path, problem: str, kind: type[LongshoreError]) -> None:
    engine = FakeEngine()
    _absent(engine, TAGGED)
    engine.answers[("POST", "/build")] = (200, [{"stream": "Step 1/2 : FROM base\n"}, {"error": problem}])
    task, bundle = _task(tmp_path)
    async with serving(engine, tmp_path) as api:
        with pytest.raises(kind, match="environment/Dockerfile:1"):
            await _images(api, tmp_path).prepare(task, bundle)


@pytest.mark.parametrize(
    ("problem", "retryable"), [("manifest unknown", False), ("net/http: TLS handshake timeout", True)]
)
async def test_a_pull_that_fails(tmp_path: Path, problem: str, retryable: bool) -> None:
    engine = FakeEngine()
    _absent(engine, "/images/registry.example/a:1/json")
    engine.answers[("POST", "/images/create")] = (200, [{"status": "Pulling"}, {"error": problem}])
    task, bundle = _task(tmp_path, docker_image="registry.example/a:1")
    async with serving(engine, tmp_path) as api:
        with pytest.raises(SandboxFailed, match=problem) as failed:
            await _images(api, tmp_path).prepare(task, bundle)
    assert failed.value.reason is EndReason.IMAGE_PULL
    assert failed.value.retryable is retryable


async def test_an_image_the_engine_has_is_neither_pulled_nor_built(tmp_path: Path) -> None:
    engine = FakeEngine()
    config = {"Env": ["PATH=/bin", "A=1"], "WorkingDir": "/w", "User": "me"}
    engine.answers[("GET", "/images/a:1/json")] = (200, {"Id": "sha256:abc", "Config": config})
    task, bundle = _task(tmp_path, docker_image="a:1", workdir="/")
    async with serving(engine, tmp_path) as api:
        images = _images(api, tmp_path)
        prepared = await images.prepare(task, bundle)
    assert prepared.image == Image("sha256:abc", reference="sha256:abc", workdir="/w", user="me")
    assert images.env_of("sha256:abc") == {"PATH", "A"}
    assert [call for call in engine.asked if call[0] == "POST"] == []


@pytest.mark.parametrize("name", ["docker-compose.yaml", ".dockerignore"])
async def test_what_is_not_honoured_is_refused(tmp_path: Path, name: str) -> None:
    engine = FakeEngine()
    _absent(engine, TAGGED)
    (tmp_path / "task" / "environment").mkdir(parents=True)
    (tmp_path / "task" / "environment" / name).write_text("x")
    (tmp_path / "task" / "task.toml").write_text("")
    data = pack_folder(tmp_path / "task")

    async def bundle() -> bytes:
        return data

    task = TaskEnvironment("sha256:task", "sha256:0123", Limits(), 10.0)
    async with serving(engine, tmp_path) as api:
        with pytest.raises(InvalidSpec, match=f"environment/{name}"):
            await _images(api, tmp_path).prepare(task, bundle)
