"""What was answered survives a killed process and a full disk; what was refused left nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as pb_grpc
from longshore_common.app import running
from longshore_common.errors import LongshoreError, QuotaExceeded
from longshore_common.grpc_client import open_channel, wait_ready
from longshore_trajectory_store.bootstrap import build
from longshore_trajectory_store.settings import Settings

from .test_servicer import group_request, seal_request, take_request, turn_request


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.asynccontextmanager
async def alone(data_dir: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], pb_grpc.TrajectoryServiceAsyncStub]]:
    """`python -m longshore_trajectory_store` with a connected stub; killed at the end when it still runs."""
    address = f"127.0.0.1:{_free_port()}"
    prefix = "LONGSHORE_TRAJECTORY_STORE_"
    env = os.environ | {f"{prefix}GRPC_ADDRESS": address, f"{prefix}DATA_DIR": str(data_dir), "LONGSHORE_SECRET": "s"}
    process = subprocess.Popen([sys.executable, "-m", "longshore_trajectory_store"], env=env, stderr=subprocess.DEVNULL)
    channel = open_channel(address, "s")
    try:
        assert await wait_ready(channel, 60)
        yield process, pb_grpc.TrajectoryServiceStub(channel)
    finally:
        await channel.close()
        process.kill()
        process.wait()


async def test_kill_9_loses_no_acknowledged_turn(tmp_path: Path) -> None:
    acknowledged: set[tuple[str, int]] = set()
    async with alone(tmp_path) as (process, stub):
        await stub.CreateGroup(group_request(size=20))

        async def write(index: int) -> None:
            with contextlib.suppress(LongshoreError):
                for turn in range(10_000):
                    await stub.AppendTurn(turn_request(f"g1-{index}", turn=turn), timeout=5)
                    acknowledged.add((f"g1-{index}", turn))

        writers = [asyncio.create_task(write(index)) for index in range(20)]
        while len(acknowledged) < 200:
            await asyncio.sleep(0.01)
        process.kill()
        await asyncio.gather(*writers)
    async with alone(tmp_path) as (_, stub):
        stored: set[tuple[str, int]] = set()
        for index in range(20):
            answer = await stub.GetAttempt(pb.GetAttemptRequest(attempt_id=f"g1-{index}", with_turns=True))
            stored |= {(turn.attempt_id, turn.turn) for turn in answer.turns}
            # A turn that was in flight may be stored too, then as a whole and next in order.
            assert [turn.turn for turn in answer.turns] == list(range(len(answer.turns)))
        assert acknowledged <= stored
        await stub.AppendTurn(turn_request("g1-0", turn=0))


async def test_sigterm_ends_cleanly(tmp_path: Path) -> None:
    async with alone(tmp_path) as (process, stub):
        await stub.CreateGroup(group_request())
        process.terminate()
        assert await asyncio.to_thread(process.wait, 20) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_refuses_whole_writes_and_recovers(small_disk: Path) -> None:
    app = await build(Settings(data_dir=small_disk, secret="s"))
    async with running(app) as handle:
        channel = open_channel(handle.grpc_addresses[0], "s")
        stub = pb_grpc.TrajectoryServiceStub(channel)
        await stub.CreateGroup(group_request(size=2))
        written = 0
        body = os.urandom(40_000)
        with pytest.raises(QuotaExceeded) as caught:
            for turn in range(1000):
                await stub.AppendTurn(turn_request("g1-0", turn=turn, request_zst=body))
                written += 1
        assert caught.value.which == "disk"
        assert written > 3
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        with pytest.raises(QuotaExceeded) as caught:
            await stub.Seal(seal_request("g1-0"))
        assert caught.value.which == "disk"
        answer = await stub.GetAttempt(pb.GetAttemptRequest(attempt_id="g1-0", with_turns=True))
        assert answer.attempt.state == pb.ATTEMPT_STATE_OPEN
        assert [turn.turn for turn in answer.turns] == list(range(written))
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        await stub.AppendTurn(turn_request("g1-0", turn=written, request_zst=body))
        await stub.AppendTurn(turn_request("g1-1"))
        for index in range(2):
            await stub.Seal(seal_request(f"g1-{index}"))
        assert len((await stub.TakeBatch(take_request())).batch.groups) == 1
        await channel.close()


async def test_a_full_disk_at_the_start_is_one_clear_error(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * (2 * 1024 * 1024))
    with pytest.raises(QuotaExceeded, match="disk is full"):
        await build(Settings(data_dir=small_disk, secret="s"))


def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        prefix = "LONGSHORE_TRAJECTORY_STORE_"
        env = os.environ | {f"{prefix}GRPC_ADDRESS": address, f"{prefix}DATA_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "longshore_trajectory_store"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr
