"""Images are on all nodes before their pods, and nothing is left of how they came there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from real_cluster import AGENT_IMAGE, BUSYBOX_IMAGE, Ground, ground
from runtime_ground import until

from longshore_sandbox_scheduler.domain.model import Image, Sidecar
from longshore_sandbox_scheduler.runtimes.pod.kube_api import CALLS
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import PodOptions
from longshore_sandbox_scheduler.runtimes.pod.prepull import COMPONENT, PrePuller, PrePullOptions, daemon_set, is_done

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
PODS = PodOptions(agent_image=AGENT_IMAGE, agent_public_key="a2V5")
ABSENT = "localhost/longshore/no-such-image:dev"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place() -> AsyncIterator[Ground]:
    async with ground() as made:
        yield made


@asynccontextmanager
async def puller(place: Ground, **options: Any) -> AsyncIterator[PrePuller]:
    made = PrePuller(place.api, place.place, PODS, PrePullOptions(**{"enabled": True, **options}))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def left(place: Ground) -> list[str]:
    listed = await place.api.list("daemonsets", place.namespace, place.place.selector(COMPONENT))
    return [one["metadata"]["name"] for one in listed.items]


def created() -> float:
    metric = CALLS.labels("create", "daemonsets", "201")
    return float(metric._value.get())


async def test_an_image_and_its_sidecars_are_pulled_once_and_the_daemon_set_goes(place: Ground) -> None:
    image = Image("d", reference=BUSYBOX_IMAGE, sidecars=(Sidecar("s", AGENT_IMAGE),))
    before = created()
    async with puller(place) as one:
        one.ask(image)
        one.ask(image)
        await until(lambda: one._informer.objects, "the daemon set")
        (shown,) = one._informer.objects.values()
        assert shown["metadata"]["ownerReferences"] == [dict(place.place.owner)]
        await until(lambda: not one._informer.objects, "all nodes to have it", 60)
        assert created() - before == 1
    assert await left(place) == []


async def test_one_that_never_gets_done_is_swept_and_makes_room_for_the_next(place: Ground) -> None:
    async with puller(place, at_once=1, timeout_s=5.0) as one:
        one.ask(Image("d", reference=ABSENT))
        one.ask(Image("d", reference=BUSYBOX_IMAGE))
        await until(lambda: one._informer.objects, "the first")
        assert await one.sweep() == []
        assert len(await left(place)) == 1
        await asyncio.sleep(6)
        told = await one.sweep(dry_run=True)
        assert [each.why for each in told] == ["not done after 5 s"]
        assert await one.sweep() == told
        await until(lambda: not one._waiting and not one._creating and not one._informer.objects, "the second", 60)
    assert await left(place) == []


async def test_what_a_dead_scheduler_left_is_removed_by_the_next_one(place: Ground) -> None:
    image = Image("d", reference=BUSYBOX_IMAGE)
    await place.api.create("daemonsets", place.namespace, daemon_set(image, place.place, PODS))
    async with puller(place) as one:
        await until(lambda: not one._informer.objects, "the left one's end", 60)
    assert await left(place) == []


async def test_a_daemon_set_is_done_when_its_newest_form_is_ready_on_every_node() -> None:
    def shown(**status: int) -> dict[str, Any]:
        return {"metadata": {"generation": 2}, "status": status}

    assert is_done(shown(observedGeneration=2, desiredNumberScheduled=3, numberReady=3))
    assert not is_done(shown(observedGeneration=2, desiredNumberScheduled=3, numberReady=2))
    assert not is_done(shown(observedGeneration=1, desiredNumberScheduled=3, numberReady=3))
    # Nothing was counted yet.
    assert not is_done(shown(observedGeneration=2, desiredNumberScheduled=0, numberReady=0))
    assert not is_done({"metadata": {"generation": 1}})
