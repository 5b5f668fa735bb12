"""A killed scheduler leaves nothing; the next one says what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scheduler_world import FakeCatalog, start_catalog, start_world

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import Conflict
from longshore_common.grpc_client import open_channel


def _marked(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _start_process(data_dir: Path, cache_dir: Path, catalog: str, port: int) -> subprocess.Popen[bytes]:
    prefix = "LONGSHORE_SANDBOX_SCHEDULER_"
    env = {
        **os.environ,
        f"{prefix}DATA_DIR": str(data_dir),
        f"{prefix}CACHE_DIR": str(cache_dir),
        f"{prefix}CATALOG_ADDRESS": catalog,
        f"{prefix}GRPC_ADDRESS": f"127.0.0.1:{port}",
    }
    return await asyncio.to_thread(
        lambda: subprocess.Popen([sys.executable, "-m", "longshore_sandbox_scheduler"], env=env)
    )


async def test_kill_9_leaves_no_sandbox_process_and_the_next_scheduler_sweeps(tmp_path: Path, cache_dir: Path) -> None:
    marker = f"{time.time_ns() % 10**9 + 10**9}"
    catalog, port, data_dir = FakeCatalog(), _free_port(), tmp_path / "data"
    async with start_catalog(catalog) as address:
        process = await _start_process(data_dir, cache_dir, address, port)
        channel, channels = open_channel(f"127.0.0.1:{port}"), AgentChannels()
        try:
            stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
            request = sandbox_pb2.ClaimSandboxRequest(task_digest=catalog.dockerfile("FROM longshore/base\n"))
            claimed = await stub.ClaimSandbox(request, wait_for_ready=True)
            agent = channels.client(claimed.agent_address, claimed.agent_token)
            await agent.exec(["sh", "-c", f"setsid sleep {marker} & (sleep {marker} &)"], timeout_s=10)
            assert len(_marked(marker)) == 2
        finally:
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            await channels.close()
            await channel.close()
    deadline = time.monotonic() + 5
    while _marked(marker) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert _marked(marker) == []
    async with start_world(data_dir, cache_dir) as world:
        sandbox = await world.get(claimed.sandbox.sandbox_id)
        assert (sandbox.state, sandbox.end_reason) == (sandbox_pb2.SANDBOX_STATE_ENDED, sandbox_pb2.END_REASON_LOST)
        assert [path for path in (data_dir / "sandboxes").iterdir() if path.is_dir()] == []


async def test_killed_launcher_ends_its_sandboxes_and_is_started_again(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path, cache_dir) as world:
        claimed = await world.claim()
        agent = world.agent(claimed)
        running = asyncio.create_task(agent.exec(["sleep", "300"], timeout_s=60))
        await asyncio.sleep(0.2)
        for pid in _children(os.getpid()):
            with contextlib.suppress(FileNotFoundError):
                if "longshore-supervisor" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        assert (await running).signal == 9
        await asyncio.sleep(0.2)
        assert (await world.get(claimed.sandbox.sandbox_id)).end_reason == sandbox_pb2.END_REASON_LOST
        assert (await (await world.sandbox()).exec(["true"], timeout_s=10)).exit_code == 0


def _children(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listing.stdout.split()]


async def test_two_schedulers_cannot_share_a_folder(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path, cache_dir):
        with pytest.raises(Conflict, match="another scheduler"):
            async with start_world(tmp_path, cache_dir):
                pass


async def test_stopping_ends_sandboxes(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path / "a", cache_dir) as world:
        claimed = await world.claim()
        await world.agent(claimed).exec(["sh", "-c", "setsid sleep 98765 &"], timeout_s=10)
    assert _marked("98765") == []
    assert json.dumps([path.name for path in (tmp_path / "a/sandboxes").iterdir() if path.is_dir()]) == "[]"
