"""The in-sandbox agent as init of a hostile task: what the contract of all runtimes does not ask for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_stand_in import require_agent, stand_in_parts
from scheduler_world import World, start_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> AsyncIterator[World]:
    """One scheduler whose sandboxes run the real agent."""
    require_agent()
    async with start_world(tmp_path_factory.mktemp("scheduler"), cache_dir, stand_in_parts) as started:
        yield started


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "auxv", "syscall", "stack"])
async def test_root_cannot_look_into_the_agent(world: World, name: str) -> None:
    agent = await world.sandbox()
    result = await agent.exec(["head", "-c", "1", f"/proc/1/{name}"], timeout_s=10)
    assert result.stdout.head == b""
    assert b"denied" in result.stderr.head or b"not permitted" in result.stderr.head


async def test_root_cannot_follow_the_agents_links(world: World) -> None:
    agent = await world.sandbox()
    result = await agent.exec(
        ["sh", "-c", "readlink /proc/1/fd/0 /proc/1/exe /proc/1/cwd; ls /proc/1/root/"], timeout_s=10
    )
    assert result.stdout.head == b""


async def test_stopped_supervisors_go_on(world: World) -> None:
    agent = await world.sandbox()
    began = time.monotonic()
    stopped = await agent.exec(["bash", "-c", "kill -STOP -1; exit 5"], timeout_s=60)
    assert (stopped.exit_code, stopped.timed_out) == (5, False)
    assert (await agent.exec(["echo", "on"], timeout_s=60)).stdout.head == b"on\n"
    assert time.monotonic() - began < 30


async def test_command_that_kills_its_supervisor_runs_once(world: World) -> None:
    agent = await world.sandbox()
    for _ in range(10):
        await agent.exec(["bash", "-c", "echo x >> /app/runs; kill -9 -1"], timeout_s=10)
    assert await agent.download("/app/runs", max_bytes=100) == b"x\n" * 10


async def test_commands_do_not_inherit_the_agents_priority(world: World) -> None:
    agent = await world.sandbox()
    assert (await agent.exec(["nice"], timeout_s=10)).stdout.head.strip() == b"0"
