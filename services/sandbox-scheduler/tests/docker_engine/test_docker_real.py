"""The docker runtime on a real engine, beyond the contract: ends, sweeps, builds, and what a task cannot do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from docker_world import ULIMITS, ensure_base, open_engine, require_engine, start_docker_world
from scheduler_world import SIMPLE, World

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.runtimes.docker.container_spec import OWNER
from longshore_sandbox_scheduler.runtimes.docker.docker_runtime import DockerRuntimeOptions
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError

_ENDED = sandbox_pb2.SANDBOX_STATE_ENDED


@pytest.fixture
async def engine() -> AsyncIterator[EngineApi]:
    async with open_engine(require_engine()) as api:
        yield api


async def _ended(world: World, sandbox_id: str) -> sandbox_pb2.Sandbox:
    for _ in range(200):
        sandbox = await world.get(sandbox_id)
        if sandbox.state == _ENDED:
            return sandbox
        await asyncio.sleep(0.05)
    pytest.fail("the sandbox has not ended")


def _reason(name: str) -> int:
    return sandbox_pb2.EndReason.Value(f"END_REASON_{name}")


async def _gone(api: EngineApi, name: str) -> None:
    for _ in range(200):
        try:
            await api.call("GET", f"/containers/{name}/json")
        except EngineError as error:
            if error.status == 404:
                return
            raise
        await asyncio.sleep(0.05)
    pytest.fail(f"container {name} is still there")


async def test_a_container_killed_from_outside_is_a_typed_loss_in_seconds(
    engine: EngineApi, tmp_path: Path, cache_dir: Path
) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        claimed = await world.claim()
        name = claimed.sandbox.sandbox_id
        began = time.monotonic()
        await engine.call("POST", f"/containers/{name}/kill", params={"signal": "KILL"})
        sandbox = await _ended(world, name)
        assert time.monotonic() - began < 5
        assert sandbox.end_reason == _reason("LOST")
        assert "killed from outside" in sandbox.end_detail
        await _gone(engine, name)


async def test_a_container_removed_by_somebody_else(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        claimed = await world.claim()
        name = claimed.sandbox.sandbox_id
        await engine.call("DELETE", f"/containers/{name}", params={"force": "1"})
        sandbox = await _ended(world, name)
        assert sandbox.end_reason in (_reason("DELETED"), _reason("LOST"))


async def test_deleted_and_stopped_leave_nothing(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        first, second = await world.claim(), await world.claim()
        await world.delete(first.sandbox.sandbox_id)
        await _gone(engine, first.sandbox.sandbox_id)
        left = await engine.call("GET", f"/containers/{second.sandbox.sandbox_id}/json")
        owner = left["Config"]["Labels"][OWNER]
    await _gone(engine, second.sandbox.sandbox_id)
    volumes = (await engine.call("GET", "/volumes"))["Volumes"] or ()
    assert not [one["Name"] for one in volumes if (one["Labels"] or {}).get(OWNER) == owner]


async def test_what_a_killed_scheduler_left_is_swept_at_the_next_start(
    engine: EngineApi, tmp_path: Path, cache_dir: Path
) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        name = (await world.claim()).sandbox.sandbox_id
        left = await engine.call("GET", f"/containers/{name}/json")
    # As a scheduler that was killed leaves them: one that runs, one that was only made, an old agent's volume.
    labels = {key: value for key, value in left["Config"]["Labels"].items() if key.startswith(("longshore", "app."))}
    body = {"Image": left["Image"], "Entrypoint": ["sleep"], "Cmd": ["1000"], "Labels": labels}
    body["HostConfig"] = {"NetworkMode": "none", "Ulimits": ULIMITS}
    for one in ("sandbox-left-running", "sandbox-left-created"):
        await engine.call("POST", "/containers/create", params={"name": one}, body=body)
    await engine.call("POST", "/containers/sandbox-left-running/start")
    other = {**body, "Labels": {**labels, OWNER: "somebody-else"}}
    await engine.call("POST", "/containers/create", params={"name": "sandbox-of-another"}, body=other)
    volume = {"Name": "longshore-agent-old", "Labels": {**labels, "longshore.dev/component": "agent"}}
    await engine.call("POST", "/volumes/create", body=volume)
    foreign = {"Name": "longshore-agent-of-another", "Labels": {**volume["Labels"], OWNER: "somebody-else"}}
    await engine.call("POST", "/volumes/create", body=foreign)
    try:
        async with start_docker_world(tmp_path, cache_dir):
            await _gone(engine, "sandbox-left-running")
            await _gone(engine, "sandbox-left-created")
            await engine.call("GET", "/containers/sandbox-of-another/json")
            names = {one["Name"] for one in (await engine.call("GET", "/volumes"))["Volumes"]}
            assert "longshore-agent-old" not in names
            assert "longshore-agent-of-another" in names
    finally:
        await engine.call("DELETE", "/volumes/longshore-agent-of-another")
        await engine.call("DELETE", "/containers/sandbox-of-another", params={"force": "1"})


async def test_the_task_cannot_replace_its_agent(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        agent = await world.sandbox()
        script = (
            "cp /bin/true /.longshore/agent/longshore-agent; rm -f /.longshore/agent/longshore-agent;"
            "mv /.longshore/agent /.longshore/other; echo x > /.longshore/agent/other; cat /proc/1/environ;"
            "ls -l /.longshore/agent"
        )
        result = await agent.exec(["sh", "-c", script], timeout_s=10)
        lines = result.stdout.head.decode().splitlines()
        assert len(lines) == 2, lines
        assert lines[1].startswith("-r-xr-xr-x"), "the agent alone, unchanged"
        with pytest.raises(InvalidSpec):
            await agent.upload("/.longshore/agent/longshore-agent", b"mine", mode=0o755)


async def test_a_lost_agent_volume_is_filled_again(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        claimed = await world.claim()
        found = await engine.call("GET", f"/containers/{claimed.sandbox.sandbox_id}/json")
        (volume,) = [mount["Name"] for mount in found["Mounts"] if mount["Destination"] == "/.longshore/agent"]
        await world.delete(claimed.sandbox.sandbox_id)
        await engine.call("DELETE", f"/volumes/{volume}")
        # The first start fails, and is tried again by the caller's channel.
        agent = await world.sandbox()
        assert (await agent.exec(["echo", "ok"], timeout_s=10)).stdout.head == b"ok\n"


async def test_a_build_that_fails_names_its_line(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    dockerfile = "FROM longshore/base\nRUN echo fine\n\nRUN echo boom-said && \\\n    exit 7\n"
    async with start_docker_world(tmp_path, cache_dir) as world:
        with pytest.raises(InvalidSpec, match=r"environment/Dockerfile:4: (.|\n)*boom-said"):
            await world.claim(world.catalog.dockerfile(dockerfile))
        (log,) = (tmp_path / "builds").glob("*.log")
        assert "boom-said" in log.read_text()
        with pytest.raises(InvalidSpec, match=r"environment/Dockerfile:2"):
            await world.claim(world.catalog.dockerfile("FROM longshore/base\nFRUM x\n"))


async def test_run_copy_env_and_user_are_built_once(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    files: dict[str, Any] = {
        "environment/Dockerfile": (
            f"FROM longshore/base\nENV A=from-image TERM=vt100\nWORKDIR /work\nCOPY data.txt .\n"
            f"RUN echo built-{tmp_path.name} > /built\nUSER nobody\n"
        ),
        "environment/data.txt": "copied",
    }
    async with start_docker_world(tmp_path, cache_dir) as world:
        task = world.catalog.add(files)
        claimed = await world.claim(task)
        script = "cat /built data.txt; echo; echo $A $TERM ${container:-none}; id -un; pwd"
        result = await world.agent(claimed).exec(["sh", "-c", script], timeout_s=10)
        assert result.stdout.head.decode().splitlines() == [
            f"built-{tmp_path.name}", "copied", "from-image vt100 none", "nobody", "/work",
        ]  # fmt: skip
        assert claimed.sandbox.image_digest.startswith("sha256:")
        prepare = sandbox_pb2.PrepareImageRequest(task_digest=task)
        assert not (await world.scheduler.PrepareImage(prepare)).built


async def test_an_image_that_is_nowhere(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        task = world.catalog.dockerfile(SIMPLE)
        world.catalog.tasks[task].docker_image = "localhost:9/longshore/no-such-image:1"
        with pytest.raises(Unavailable, match="no-such-image") as failed:
            await world.claim(task)
        assert failed.value.details["end_reason"] == "image_pull"


async def test_storage_over_its_limit_ends_the_sandbox(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    options = {"start": DockerRuntimeOptions(storage_check_s=0.2)}
    async with start_docker_world(tmp_path, cache_dir, options) as world:
        claimed = await world.claim(limits=sandbox_pb2.Limits(storage_mb=16))
        agent = world.agent(claimed)
        await agent.exec(["dd", "if=/dev/zero", "of=/app/big", "bs=1M", "count=40"], timeout_s=10)
        sandbox = await _ended(world, claimed.sandbox.sandbox_id)
        assert sandbox.end_reason == _reason("EVICTED")
        assert "16 MiB allowed" in sandbox.end_detail


async def test_public_is_only_offered_on_a_network_that_the_operator_names(
    engine: EngineApi, tmp_path: Path, cache_dir: Path
) -> None:
    public = sandbox_pb2.Network(network_class=sandbox_pb2.NETWORK_CLASS_PUBLIC)
    interfaces = ["sh", "-c", "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' ' | sort"]
    names = {one["Name"] for one in await engine.call("GET", "/networks")}
    bridge = "bridge" if "bridge" in names else "podman"
    async with AsyncExitStack() as stack:
        closed = await stack.enter_async_context(start_docker_world(tmp_path / "closed", cache_dir))
        with pytest.raises(InvalidSpec, match="no-network"):
            await closed.claim(network=public)
        agent = await closed.sandbox()
        assert (await agent.exec(interfaces, timeout_s=10)).stdout.head == b"lo\n"
        open_ = await stack.enter_async_context(
            start_docker_world(tmp_path / "open", cache_dir, {"public_network": bridge})
        )
        agent = open_.agent(await open_.claim(network=public))
        assert (await agent.exec(interfaces, timeout_s=10)).stdout.head == b"eth0\nlo\n"


async def test_a_burst_of_claims(engine: EngineApi, tmp_path: Path, cache_dir: Path) -> None:
    async with start_docker_world(tmp_path, cache_dir) as world:
        task = world.catalog.dockerfile(SIMPLE)
        claims = await asyncio.gather(*(world.claim(task) for _ in range(8)))
        results = await asyncio.gather(*(world.agent(one).exec(["hostname"], timeout_s=30) for one in claims))
        assert {result.stdout.head for result in results} == {b"sandbox\n"}
        assert len({one.sandbox.instance for one in claims}) == 8


async def test_base_import_is_repeatable(engine: EngineApi, cache_dir: Path) -> None:
    await ensure_base(engine, cache_dir)
    before = await engine.call("GET", "/images/longshore/base/json")
    await ensure_base(engine, cache_dir)
    assert (await engine.call("GET", "/images/longshore/base/json"))["Id"] == before["Id"]
