"""Claims, leases, limits of the scheduler, and how sandboxes end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from scheduler_world import World, start_world

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.errors import Conflict, InvalidSpec, NotFound, QuotaExceeded, Unavailable
from longshore_common.grpc_client import mapped_stream


async def test_life_of_a_sandbox(world: World) -> None:
    claimed = await world.claim(run_id="run-1", attempt_id="attempt-1", ttl_s=100)
    sandbox = claimed.sandbox
    assert sandbox.state == sandbox_pb2.SANDBOX_STATE_READY
    assert 95_000 < sandbox.expires_at_ms - sandbox.created_at_ms <= 101_000
    assert sandbox.image_digest.startswith("sha256:")
    renewed = await world.scheduler.RenewSandbox(
        sandbox_pb2.RenewSandboxRequest(sandbox_id=sandbox.sandbox_id, ttl_s=500)
    )
    assert renewed.expires_at_ms > sandbox.expires_at_ms + 300_000
    await world.delete(sandbox.sandbox_id)
    await world.delete(sandbox.sandbox_id)
    ended = await world.get(sandbox.sandbox_id)
    assert (ended.state, ended.end_reason) == (sandbox_pb2.SANDBOX_STATE_ENDED, sandbox_pb2.END_REASON_DELETED)
    listed = await world.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest(run_id="run-1", include_ended=True))
    assert [found.sandbox_id for found in listed.sandboxes] == [sandbox.sandbox_id]
    assert not (await world.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest(run_id="run-1"))).sandboxes
    with pytest.raises(Conflict, match="deleted"):
        await world.scheduler.RenewSandbox(sandbox_pb2.RenewSandboxRequest(sandbox_id=sandbox.sandbox_id, ttl_s=1))
    with pytest.raises(NotFound):
        await world.delete("sandbox-unknown")


async def test_deleting_leaves_nothing(world: World) -> None:
    claimed = await world.claim()
    agent = world.agent(claimed)
    await agent.exec(["sh", "-c", "setsid sleep 7654 & mkdir -p a/b; chmod 000 a"], timeout_s=10)
    running = asyncio.create_task(agent.exec(["sleep", "7654"], timeout_s=60))
    await asyncio.sleep(0.2)
    await world.delete(claimed.sandbox.sandbox_id)
    assert (await running).signal == 9
    assert "7654" not in _all_command_lines()
    for _ in range(100):
        if not [*(world.settings.data_dir / "trash").iterdir()] and not _sandbox_folders(world):
            break
        await asyncio.sleep(0.05)
    assert not _sandbox_folders(world)
    assert not _cgroups_of(claimed.sandbox.sandbox_id)


def _all_command_lines() -> str:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)


def _sandbox_folders(world: World) -> list[Path]:
    return [path for path in (world.settings.data_dir / "sandboxes").iterdir() if path.is_dir()]


def _cgroups_of(sandbox_id: str) -> list[str]:
    return [path for path, folders, _ in os.walk("/sys/fs/cgroup/memory") if sandbox_id in folders]


async def test_expired_lease_ends_the_sandbox(world: World) -> None:
    claimed = await world.claim(ttl_s=0.5)
    for _ in range(100):
        sandbox = await world.get(claimed.sandbox.sandbox_id)
        if sandbox.state == sandbox_pb2.SANDBOX_STATE_ENDED:
            break
        await asyncio.sleep(0.05)
    assert sandbox.end_reason == sandbox_pb2.END_REASON_EXPIRED


async def test_same_key_gives_the_same_sandbox(world: World) -> None:
    task = world.catalog.dockerfile("FROM longshore/base\n")
    claims = await asyncio.gather(*(world.claim(task, idempotency_key="k") for _ in range(8)))
    assert len({(claim.sandbox.sandbox_id, claim.agent_token) for claim in claims}) == 1
    assert (await world.claim(task, idempotency_key="k")).agent_token == claims[0].agent_token
    with pytest.raises(Conflict, match="belongs to"):
        await world.claim(world.catalog.dockerfile("FROM longshore/base\nENV A=1\n"), idempotency_key="k")
    await world.delete(claims[0].sandbox.sandbox_id)
    with pytest.raises(Conflict, match="has ended"):
        await world.claim(task, idempotency_key="k")


async def test_racing_claims_get_distinct_sandboxes_agent_sandbox_418(world: World) -> None:
    task = world.catalog.dockerfile("FROM longshore/base\n")
    claims = await asyncio.gather(*(world.claim(task) for _ in range(30)))
    assert len({claim.sandbox.sandbox_id for claim in claims}) == 30
    assert len({claim.agent_token for claim in claims}) == 30


async def test_full_scheduler_makes_claims_wait_and_then_refuses(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path, cache_dir, max_sandboxes=1, claim_wait_s=0.5) as world:
        first = await world.claim()
        with pytest.raises(QuotaExceeded, match="all 1 sandboxes") as caught:
            await world.claim()
        assert caught.value.which == "sandboxes"
        waiting = asyncio.create_task(world.claim())
        await asyncio.sleep(0.1)
        await world.delete(first.sandbox.sandbox_id)
        assert (await waiting).sandbox.state == sandbox_pb2.SANDBOX_STATE_READY


async def test_limits_are_only_lowered(world: World) -> None:
    task = world.catalog.dockerfile("FROM longshore/base\n", memory_mb=300, cpus=0.5)
    lowered = await world.claim(task, limits=sandbox_pb2.Limits(memory_mb=100, cpus=8, max_file_mb=7))
    limits = lowered.sandbox.limits
    assert (limits.memory_mb, limits.cpus, limits.max_file_mb, limits.max_processes) == (100, 0.5, 7, 256)
    with pytest.raises(InvalidSpec, match="memory_mb"):
        await world.claim(task, limits=sandbox_pb2.Limits(memory_mb=-1))
    with pytest.raises(InvalidSpec, match="ttl_s"):
        await world.claim(task, ttl_s=-5)


async def test_enforcement_is_stated(world: World) -> None:
    stated = dict((await world.claim()).sandbox.enforcement.by_limit)
    assert set(stated) == {"memory", "processes", "cpus", "file_size", "storage"}
    assert (stated["file_size"], stated["storage"]) == ("rlimit", "advisory")


async def test_storage_beyond_the_limit_evicts(world: World) -> None:
    claimed = await world.claim(limits=sandbox_pb2.Limits(storage_mb=8))
    agent = world.agent(claimed)
    await agent.exec(["sh", "-c", "for i in 1 2 3; do head -c 5000000 /dev/zero > $i; done"], timeout_s=10)
    for _ in range(100):
        sandbox = await world.get(claimed.sandbox.sandbox_id)
        if sandbox.state == sandbox_pb2.SANDBOX_STATE_ENDED:
            break
        await asyncio.sleep(0.05)
    assert sandbox.end_reason == sandbox_pb2.END_REASON_EVICTED
    assert "storage" in sandbox.end_detail


async def test_limits_without_cgroups_hold_or_are_said_to_be_advisory(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path, cache_dir, use_cgroups=False) as world:
        claimed = await world.claim(limits=sandbox_pb2.Limits(memory_mb=64, max_processes=40))
        stated = claimed.sandbox.enforcement.by_limit
        assert (stated["memory"], stated["processes"], stated["cpus"]) == ("advisory", "rlimit-uid", "advisory")
        agent = world.agent(claimed)
        hog = await agent.exec(["sh", "-c", "tail -c 400m /dev/zero | tail"], timeout_s=20)
        assert hog.status != 0
        bomb = await agent.exec(["bash", "-c", "for i in $(seq 200); do sleep 50 & done; wait"], timeout_s=3)
        assert b"fork" in bomb.stderr.head
        count = await agent.exec(["sh", "-c", "ps -e | wc -l"], timeout_s=10)
        assert int(count.stdout.head or b"0") < 70
        other = await world.sandbox(max_processes=40)
        fine = await other.exec(["sh", "-c", "for i in $(seq 20); do sleep 1 & done; wait; echo ok"], timeout_s=10)
        assert fine.stdout.head == b"ok\n", "one sandbox's processes count against another's limit"


async def test_memory_watchdog_without_cgroups(tmp_path: Path, cache_dir: Path) -> None:
    async with start_world(tmp_path, cache_dir, use_cgroups=False) as world:
        claimed = await world.claim(limits=sandbox_pb2.Limits(memory_mb=48))
        agent = world.agent(claimed)
        hogs = "for i in 1 2 3; do (head -c 30m /dev/zero; sleep 20) | tail -c 29m & done; wait"
        end = await agent.exec(["sh", "-c", hogs], timeout_s=20)
        sandbox = await world.get(claimed.sandbox.sandbox_id)
        assert end.signal == 9
        assert sandbox.end_reason == sandbox_pb2.END_REASON_OOM


async def test_start_failure_is_recorded_and_the_key_can_be_used_again(world: World) -> None:
    broken = world.catalog.add(
        {"environment/Dockerfile": "FROM longshore/base\nCOPY cat /usr/bin/cat\n", "environment/cat": "not a program"}
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"did not start.*cat"):
            await world.claim(broken, idempotency_key="broken")
    listed = await world.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest(include_ended=True))
    assert {sandbox.end_reason for sandbox in listed.sandboxes} == {sandbox_pb2.END_REASON_START_FAILED}
    await asyncio.sleep(0.5)
    assert not _sandbox_folders(world)


async def test_watch_tells_each_change(world: World) -> None:
    call = world.scheduler.WatchSandboxes(sandbox_pb2.WatchSandboxesRequest(run_id="run-w"))
    states: list[tuple[int, int]] = []

    async def read() -> None:
        async for message in mapped_stream(call):
            states.append((message.sandbox.state, message.sandbox.end_reason))
            if message.sandbox.state == sandbox_pb2.SANDBOX_STATE_ENDED:
                return

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.2)
    await world.claim(run_id="run-other")
    claimed = await world.claim(run_id="run-w")
    await world.delete(claimed.sandbox.sandbox_id)
    await asyncio.wait_for(reading, 5)
    call.cancel()
    assert [state for state, _ in states] == [1, 2, 3]
    assert states[-1][1] == sandbox_pb2.END_REASON_DELETED
