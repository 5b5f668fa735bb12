"""Warm pools: exactly-once claims, targets that follow demand, never beyond the places."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeCluster, FakeWarmRuntime
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_common.clock import FakeClock
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Limits, Template
from longshore_sandbox_scheduler.domain.pools import PoolPolicy, WarmPools
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, SandboxFailed

TEMPLATE = Template(Image("sha256:a"), Limits(cpus=1, memory_mb=64))
OTHER = Template(Image("sha256:b"), Limits(cpus=1, memory_mb=64))
POLICY = PoolPolicy(max_per_template=50, keep_per_template=0, refill_per_s=1000, idle_s=300)


def tag(run: str = "run") -> ClaimTag:
    return ClaimTag(run, "attempt", "task", "", 60.0)


def pools_of(runtime: FakeWarmRuntime, places: int = 100, policy: PoolPolicy = POLICY) -> tuple[WarmPools, FakeClock]:
    clock = FakeClock()
    pools = WarmPools(runtime, clock, policy, places)
    clock.advance(1.0)
    return pools, clock


def demand(count: int, template: Template = TEMPLATE) -> dict[str, tuple[Template, int]]:
    return {template.key: (template, count)}


async def test_fifty_racing_claims_get_fifty_pods_agent_sandbox_418() -> None:
    """Also with several schedulers that see the same pods."""
    runtime = FakeWarmRuntime(FakeCluster(), latency_s=0.001)
    schedulers = [pools_of(runtime)[0] for _ in range(3)]
    schedulers[0].set_demand("run", demand(50))
    await schedulers[0].refill()
    taken = await asyncio.gather(*(schedulers[number % 3].take(TEMPLATE, tag()) for number in range(60)))
    names = [one.sandbox_id for one in taken if one is not None]
    assert len(names) == len(set(names)) == 50


async def test_a_lost_race_goes_on_to_the_next() -> None:
    runtime = FakeWarmRuntime(FakeCluster(steal=2))
    pools, _ = pools_of(runtime)
    pools.set_demand("run", demand(3))
    await pools.refill()
    assert await pools.take(TEMPLATE, tag()) is not None
    assert await pools.take(TEMPLATE, tag()) is None


async def test_target_follows_demand_and_its_end() -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, clock = pools_of(runtime)
    pools.set_demand("one", demand(4))
    pools.set_demand("two", demand(3))
    await pools.refill()
    assert runtime.population == 7
    assert await pools.take(TEMPLATE, tag("one")) is not None
    assert pools.target(TEMPLATE.key) == 6, "a claim uses up what its run announced"
    pools.set_demand("one", {})
    clock.advance(1)
    await pools.refill()
    assert (len(runtime.warm()), runtime.population) == (3, 4)
    clock.advance(POLICY.idle_s + 1)
    await pools.refill()
    assert [pod.tag is not None for pod in runtime.cluster.pods.values()] == [True], "a claimed one is never discarded"


async def test_not_ready_ones_are_not_given_out() -> None:
    runtime = FakeWarmRuntime(FakeCluster(), starts_ready=False)
    pools, _ = pools_of(runtime)
    pools.set_demand("run", demand(2))
    await pools.refill()
    assert await pools.take(TEMPLATE, tag()) is None
    (state,) = pools.states()
    assert (state.ready, state.starting, state.target, state.misses) == (0, 2, 1, 1), (
        "what was served cold is no longer in demand"
    )


async def test_templates_do_not_mix() -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, _ = pools_of(runtime)
    pools.set_demand("run", demand(2))
    await pools.refill()
    assert await pools.take(OTHER, tag()) is None


async def test_replicas_with_room_for_eight_never_make_more_agent_sandbox_1215() -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, clock = pools_of(runtime, places=8)
    pools.set_demand("run", demand(40))
    for _ in range(5):
        await pools.refill()
        clock.advance(1)
    assert runtime.cluster.peak == 8


async def test_a_cold_start_takes_the_place_of_the_least_wanted() -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, _ = pools_of(runtime, places=4)
    pools.set_demand("run", {**demand(3), **demand(1, OTHER)})
    await pools.refill()
    assert runtime.population == 4
    await pools.make_room()
    assert sorted(one.template_key for one in runtime.warm()) == [TEMPLATE.key] * 3
    await runtime.launch("cold", OTHER, tag())
    assert runtime.cluster.peak == 4


async def test_refill_is_paced() -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, clock = pools_of(runtime, policy=PoolPolicy(max_per_template=50, refill_per_s=5))
    pools.set_demand("run", demand(50))
    await pools.refill()
    assert runtime.population == 5
    await pools.refill()
    assert runtime.population == 5
    clock.advance(0.5)
    await pools.refill()
    assert runtime.population == 7


async def test_failures_pause_the_pool() -> None:
    cluster = FakeCluster(refuse=SandboxFailed(EndReason.QUOTA, "quota pods is used up"))
    runtime = FakeWarmRuntime(cluster)
    pools, clock = pools_of(runtime)
    pools.set_demand("run", demand(1))
    await pools.refill()
    cluster.refuse = None
    await pools.refill()
    assert runtime.population == 0, "a full quota is not asked again at once"
    clock.advance(3)
    await pools.refill()
    assert runtime.population == 1


@settings(max_examples=60, deadline=None)
@given(
    places=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["demand", "take", "refill", "release", "cold"]), st.integers(0, 15)), max_size=40
    ),
)
async def test_never_beyond_the_places_and_never_twice(places: int, steps: list[tuple[str, int]]) -> None:
    runtime = FakeWarmRuntime(FakeCluster())
    pools, clock = pools_of(runtime, places)
    claimed = []
    for number, (what, count) in enumerate(steps):
        clock.advance(0.5)
        if what == "demand":
            pools.set_demand("run", demand(count))
        elif what == "refill":
            await pools.refill()
        elif what == "release" and claimed:
            await claimed.pop().stop(None)
        elif what in ("take", "cold") and len(claimed) < places:
            taken = await pools.take(TEMPLATE if what == "take" else OTHER, tag())
            if taken is None:
                await pools.make_room()
                claimed.append(await runtime.launch(f"cold-{number}", TEMPLATE, tag()))
            else:
                claimed.append(taken.running)
    assert runtime.cluster.peak <= places
    assert len(runtime.cluster.claims) == len(set(runtime.cluster.claims))


@pytest.mark.parametrize("field", ["image", "limits", "network"])
def test_anything_that_differs_is_another_template(field: str) -> None:
    from dataclasses import replace

    from longshore_sandbox_scheduler.domain.model import Network, NetworkClass

    change = {
        "image": Image("sha256:a", user="nobody"),
        "limits": Limits(cpus=1, memory_mb=65),
        "network": Network(NetworkClass.PUBLIC),
    }[field]
    assert replace(TEMPLATE, **{field: change}).key != TEMPLATE.key
    assert replace(TEMPLATE).key == TEMPLATE.key
