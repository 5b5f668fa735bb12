"""Leadership by a Lease: never two leaders at a time, whatever clocks and calls do."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.leadership import LeaseLeadership, LeaseOptions
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

PLACE = Placement("sandboxes", "r1", {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"})
OPTIONS = LeaseOptions()


class Store:
    """One Lease, with the API server's optimistic locking. `broken` identities get no answer; `act` says whether
    their writes happen all the same."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (kind, namespace, name) == ("leases", "sandboxes", OPTIONS.name)
        if self.lease is None:
            raise KubeError(404, "NotFound", "no lease")
        return copy.deepcopy(self.lease)

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.lease is not None:
            raise KubeError(409, "AlreadyExists", "there is one")
        return self._store(body)

    async def update(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.lease is None or body["metadata"]["resourceVersion"] != str(self.version):
            raise KubeError(409, "Conflict", "changed")
        return self._store(body)

    def _store(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


class Cut:
    """One scheduler's way to the store; cut: no call gets through ("before") or no answer comes back ("after")."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cut = ""

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            if self.cut == "before":
                raise KubeError(0, "Cut", "no answer")
            answer = await getattr(self.store, name)(*arguments)
            if self.cut == "after":
                raise KubeError(0, "Cut", "no answer")
            return answer

        return call


class World:
    def __init__(self, count: int) -> None:
        self.now = 1000.0
        self.store = Store()
        self.ways = [Cut(self.store) for _ in range(count)]
        self.members = [
            LeaseLeadership(way, PLACE, f"s{i}", OPTIONS, lambda: self.now) for i, way in enumerate(self.ways)
        ]

    @property
    def leaders(self) -> list[int]:
        return [i for i, member in enumerate(self.members) if member.is_leader]


async def test_the_first_one_leads_and_renews() -> None:
    world = World(2)
    for _ in range(20):
        await world.members[0].step()
        await world.members[1].step()
        assert world.leaders == [0]
        world.now += 2
    assert world.store.lease is not None
    assert world.store.lease["spec"]["leaseTransitions"] == 0
    assert world.store.lease["metadata"]["ownerReferences"] == [dict(PLACE.owner)]


async def test_a_leader_that_dies_is_followed_after_the_duration_and_not_before() -> None:
    world = World(2)
    await world.members[0].step()
    await world.members[1].step()
    world.now += OPTIONS.duration_s - 0.5
    await world.members[1].step()
    assert world.leaders == []
    world.now += 1
    await world.members[1].step()
    assert world.leaders == [1]
    await world.members[0].step()
    assert world.leaders == [1]


async def test_a_leader_that_is_cut_off_stops_by_itself_before_another_starts() -> None:
    world = World(2)
    await world.members[0].step()
    world.ways[0].cut = "before"
    world.now += OPTIONS.renew_within_s
    await world.members[0].step()
    assert world.leaders == []


async def test_a_clean_stop_hands_over_at_once() -> None:
    world = World(2)
    running = asyncio.create_task(world.members[0].run())
    while not world.leaders:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.leaders == []
    await world.members[1].step()
    assert world.leaders == [1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["", "", "", "before", "after"]), st.floats(0, 20)),
        max_size=60,
    )
)
def test_there_are_never_two_leaders(steps: list[tuple[int, str, float]]) -> None:
    async def play() -> None:
        world = World(3)
        for member, cut, seconds in steps:
            world.ways[member].cut = cut
            await world.members[member].step()
            assert len(world.leaders) <= 1
            world.now += seconds
            assert len(world.leaders) <= 1

    asyncio.run(play())


async def test_two_that_see_a_free_lease_at_once_do_not_both_get_it() -> None:
    world = World(8)
    await asyncio.gather(*(member.step() for member in world.members))
    assert len(world.leaders) == 1


def test_times_that_would_overlap_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="renew_within_s"):
        LeaseOptions(duration_s=10, renew_within_s=10)
