"""Several schedulers over one database and one cluster: what outlives a scheduler, and what a sweep removes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import FakeCluster, FakePod, FakeWarmRuntime

from longshore_common.clock import FakeClock
from longshore_common.database import Database, migrate
from longshore_common.errors import Conflict, InvalidSpec, LongshoreError, PermissionDenied, QuotaExceeded
from longshore_sandbox_scheduler.api.agent_tokens import JwtAgentTokens
from longshore_sandbox_scheduler.domain.admission import Admission
from longshore_sandbox_scheduler.domain.model import (
    Claim,
    Demand,
    EndReason,
    LaunchType,
    Limits,
    Network,
    NetworkClass,
    SandboxState,
    TaskEnvironment,
)
from longshore_sandbox_scheduler.domain.pools import PoolPolicy, WarmPools
from longshore_sandbox_scheduler.domain.runtime import SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.domain.scheduler import Policy, Scheduler
from longshore_sandbox_scheduler.store.sql import SqlRecords

POLICY = Policy(
    default_limits=Limits(1.0, 64, 64, 64, 64),
    claim_wait_s=0.05,
    default_ttl_s=60.0,
    max_life_s=600.0,
    sweep_interval_s=1.0,
    orphan_sweep_interval_s=30.0,
    keep_ended_s=3600.0,
    owner="release",
    agent_address="scheduler:7409",
)


class _Tasks:
    async def environment(self, task_digest: str) -> TaskEnvironment:
        network = Network(NetworkClass.PUBLIC) if task_digest == "public" else None
        return TaskEnvironment(task_digest, "sha256:e", Limits(), 60.0, network=network)

    async def bundle(self, task_digest: str) -> bytes:
        return b""


@dataclass
class _Follower:
    is_leader: bool = True


@dataclass
class Replica:
    scheduler: Scheduler
    leadership: _Follower
    pools: WarmPools


@dataclass
class Fleet:
    cluster: FakeCluster
    clock: FakeClock
    database: Database

    async def replica(self, places: int = 10, leader: bool = True) -> Replica:
        runtime = FakeWarmRuntime(self.cluster)
        pools = WarmPools(runtime, self.clock, PoolPolicy(max_per_template=10, refill_per_s=100), places)
        leadership = _Follower(leader)
        tokens = JwtAgentTokens("secret", lambda: self.clock.now_ms() / 1000)
        scheduler = Scheduler(
            runtime,
            SqlRecords(self.database),
            _Tasks(),
            self.clock,
            Admission(places),
            POLICY,
            tokens,
            leadership,
            pools,
        )
        await scheduler.start()
        self.clock.advance(1.0)
        return Replica(scheduler, leadership, pools)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    url = f"sqlite+aiosqlite:///{tmp_path}/scheduler.db"
    await asyncio.to_thread(migrate, url, "longshore_sandbox_scheduler.store")
    found = Fleet(FakeCluster(), FakeClock(), Database(url))
    yield found
    await found.database.close()


async def _settled(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.005)


async def test_any_replica_serves_any_sandbox(fleet: Fleet) -> None:
    one, two = await fleet.replica(), await fleet.replica()
    granted = await one.scheduler.claim(Claim("task", run_id="run", idempotency_key="k"))
    sandbox_id = granted.sandbox.sandbox_id
    assert (granted.agent_address, granted.sandbox.instance) == ("127.0.0.1:1", f"uid-{sandbox_id}")
    again = await two.scheduler.claim(Claim("task", run_id="run", idempotency_key="k"))
    assert again.sandbox.sandbox_id == sandbox_id
    assert (await two.scheduler.by_token(granted.agent_token)).sandbox.sandbox_id == sandbox_id
    assert await two.scheduler.renew(sandbox_id, 100) > granted.sandbox.expires_at_ms
    relayed = await two.scheduler.grant_access(sandbox_id)
    assert relayed.agent_address == "scheduler:7409"
    await two.scheduler.delete(sandbox_id)

    async def told() -> bool:
        return (await one.scheduler.get(sandbox_id)).state is SandboxState.ENDED

    await _settled(told)
    assert not fleet.cluster.pods
    with pytest.raises(PermissionDenied):
        await one.scheduler.by_token(granted.agent_token)


async def test_sandboxes_outlive_a_killed_scheduler(fleet: Fleet) -> None:
    """As after SIGKILL: no goodbye, and a new process over the same database."""
    one = await fleet.replica()
    kept = await one.scheduler.claim(Claim("task", run_id="run"))
    died = await one.scheduler.claim(Claim("task", run_id="run"))
    fleet.cluster.pods.pop(died.sandbox.sandbox_id)
    two = await fleet.replica()
    assert (await two.scheduler.by_token(kept.agent_token)).sandbox == kept.sandbox
    ended = await two.scheduler.get(died.sandbox.sandbox_id)
    assert (ended.state, ended.end_reason) == (SandboxState.ENDED, EndReason.LOST)
    assert [*fleet.cluster.pods] == [kept.sandbox.sandbox_id]


async def test_a_pod_claimed_by_a_scheduler_that_died_before_it_wrote_so_is_swept(fleet: Fleet) -> None:
    one = await fleet.replica()
    await one.scheduler.set_demand("run", [Demand("task", 1)])
    await one.pools.refill()
    (pod,) = fleet.cluster.pods.values()
    from longshore_sandbox_scheduler.domain.runtime import ClaimTag

    pod.tag = ClaimTag("run", "attempt", "task", "", 60.0)
    assert [removed.name for removed in await one.scheduler.sweep_orphans(dry_run=True)] == [pod.sandbox_id]
    assert fleet.cluster.pods
    await one.scheduler.sweep_orphans(dry_run=False)
    assert not fleet.cluster.pods


async def test_a_claim_that_was_never_answered_ends_with_its_lease(fleet: Fleet) -> None:
    one = await fleet.replica()
    from dataclasses import replace

    granted = await one.scheduler.claim(Claim("task", ttl_s=5))
    record = replace(granted.sandbox, sandbox_id="sandbox-half", state=SandboxState.STARTING, instance="")
    await SqlRecords(fleet.database).insert(record)
    two = await fleet.replica()
    fleet.clock.advance(6)
    await two.scheduler.sweep_once()

    async def ended() -> bool:
        return (await two.scheduler.get("sandbox-half")).end_reason is EndReason.LOST

    await _settled(ended)


async def test_only_the_leader_ends_what_expired(fleet: Fleet) -> None:
    one, two = await fleet.replica(leader=False), await fleet.replica(leader=True)
    granted = await one.scheduler.claim(Claim("task", ttl_s=5))
    fleet.clock.advance(6)
    await one.scheduler.sweep_once()
    assert fleet.cluster.pods
    await two.scheduler.sweep_once()

    async def ended() -> bool:
        return (await two.scheduler.get(granted.sandbox.sandbox_id)).end_reason is EndReason.EXPIRED

    await _settled(ended)
    assert not fleet.cluster.pods


async def test_deadline_wins_over_renewals(fleet: Fleet) -> None:
    one = await fleet.replica()
    granted = await one.scheduler.claim(Claim("task"))
    await one.scheduler.renew(granted.sandbox.sandbox_id, 7 * 86400)
    fleet.clock.advance(POLICY.max_life_s + 1)
    await one.scheduler.sweep_once()

    async def ended() -> bool:
        return (await one.scheduler.get(granted.sandbox.sandbox_id)).end_reason is EndReason.DEADLINE_EXCEEDED

    await _settled(ended)


async def test_a_warm_claim_keeps_one_record_under_the_pods_own_name(fleet: Fleet) -> None:
    one = await fleet.replica()
    await one.scheduler.set_demand("run", [Demand("task", 2)])
    await one.pools.refill()
    names = set(fleet.cluster.pods)
    granted = await one.scheduler.claim(Claim("task", run_id="run", idempotency_key="k"))
    assert granted.sandbox.sandbox_id in names
    assert granted.sandbox.launch is LaunchType.WARM
    listed = await one.scheduler.list("run", include_ended=True)
    assert [found.sandbox_id for found in listed] == [granted.sandbox.sandbox_id]
    assert (await one.scheduler.claim(Claim("task", run_id="run", idempotency_key="k"))).sandbox == granted.sandbox


async def test_a_used_pod_is_never_given_out_again_open_sandbox_723(fleet: Fleet) -> None:
    one = await fleet.replica()
    granted = await one.scheduler.claim(Claim("task"))
    two = await fleet.replica()
    assert await two.pools.take(fleet.cluster.pods[granted.sandbox.sandbox_id].template, _tag()) is None


def _tag() -> object:
    from longshore_sandbox_scheduler.domain.runtime import ClaimTag

    return ClaimTag("run", "", "task", "", 60.0)


async def test_typed_failure_reaches_the_caller_and_frees_the_place(fleet: Fleet) -> None:
    one = await fleet.replica(places=1)
    fleet.cluster.refuse = SandboxFailed(EndReason.IMAGE_PULL, "no such image")
    for _ in range(2):
        with pytest.raises(LongshoreError, match="no such image") as caught:
            await one.scheduler.claim(Claim("task", idempotency_key="k"))
        assert caught.value.details["end_reason"] == "image_pull"
    fleet.cluster.refuse = None
    assert (await one.scheduler.claim(Claim("task", idempotency_key="k"))).sandbox.state is SandboxState.READY


async def test_places_hold_across_a_restart(fleet: Fleet) -> None:
    one = await fleet.replica(places=1)
    await one.scheduler.claim(Claim("task"))
    two = await fleet.replica(places=1)
    with pytest.raises(QuotaExceeded) as caught:
        await two.scheduler.claim(Claim("task"))
    assert caught.value.details["retry_after_s"]


async def test_networks(fleet: Fleet) -> None:
    one = await fleet.replica()
    assert (await one.scheduler.claim(Claim("task"))).sandbox.network is NetworkClass.GATEWAY_ONLY
    assert (await one.scheduler.claim(Claim("public"))).sandbox.network is NetworkClass.GATEWAY_ONLY
    wished = Claim("task", network=Network(NetworkClass.NO_NETWORK))
    assert (await one.scheduler.claim(wished)).sandbox.network is NetworkClass.NO_NETWORK
    with pytest.raises(InvalidSpec, match="gateway-only, no-network"):
        await one.scheduler.claim(Claim("task", network=Network(NetworkClass.PUBLIC)))


async def test_the_first_reason_stays(fleet: Fleet) -> None:
    one = await fleet.replica()
    granted = await one.scheduler.claim(Claim("task", idempotency_key="k"))
    pod: FakePod = fleet.cluster.pods[granted.sandbox.sandbox_id]
    await pod.stop(SandboxEnd(EndReason.OOM, "memory"))
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="oom"):
        await one.scheduler.renew(granted.sandbox.sandbox_id, 5)
    await one.scheduler.delete(granted.sandbox.sandbox_id)
    assert (await one.scheduler.get(granted.sandbox.sandbox_id)).end_reason is EndReason.OOM
    with pytest.raises(Conflict, match="oom"):
        await one.scheduler.claim(Claim("task", idempotency_key="k"))


async def test_a_claim_that_cannot_be_recorded_leaves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await fleet.replica(places=1)
    await one.scheduler.set_demand("run", [Demand("task", 1)])
    await one.pools.refill()

    async def full(self: SqlRecords, sandbox_id: str, renamed: object) -> None:
        raise QuotaExceeded("database or disk is full", which="disk")

    with monkeypatch.context() as patched:
        patched.setattr(SqlRecords, "rename", full)
        with pytest.raises(QuotaExceeded, match="disk is full"):
            await one.scheduler.claim(Claim("task", run_id="run"))
    assert not fleet.cluster.pods
    assert (await one.scheduler.claim(Claim("task", run_id="run"))).sandbox.state is SandboxState.READY
