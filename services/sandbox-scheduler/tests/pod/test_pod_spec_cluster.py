"""The API server takes the pods that are rendered, also those that nodes here cannot run; compose tasks run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from real_cluster import AGENT_IMAGE, BUSYBOX_IMAGE
from runtime_ground import LIMITS, TEMPLATE, Replicas, replicas, tag

from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Template
from longshore_sandbox_scheduler.domain.runtime import SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.runtimes.pod.compose import parse
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import PodOptions, pod_of
from longshore_sandbox_scheduler.runtimes.pod.startup_checks import check_image_volumes

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
BASE = PodOptions(agent_image=AGENT_IMAGE, agent_public_key="a2V5")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world() -> AsyncIterator[Replicas]:
    async with replicas() as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        BASE,
        replace(BASE, host_users=False),
        replace(BASE, pod={"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}, labels={"team": "x"}),
    ],
    ids=["plain", "user-namespace", "placed"],
)
async def test_the_api_server_takes_the_pod_within_baseline(world: Replicas, options: PodOptions) -> None:
    pod = pod_of("dry", TEMPLATE, world.ground.place, "open", {}, options, None)
    taken = await world.ground.api.create("pods", world.ground.namespace, pod, dry_run=True)
    assert {one["name"] for one in taken["spec"]["volumes"]} == {one["name"] for one in pod["spec"]["volumes"]}
    assert taken["spec"].get("hostUsers") is options.host_users
    assert await world.pods() == {}


async def test_image_volumes_are_used_where_the_server_has_them_and_refused_where_it_drops_them(
    world: Replicas,
) -> None:
    """Kubernetes 1.34 takes such a pod, and leaves the agent out of it without a word."""
    place, options = world.ground.place, replace(BASE, agent_by_image_volume=True)
    pod = pod_of("dry", TEMPLATE, place, "open", {}, options, None)
    taken = await world.ground.api.create("pods", world.ground.namespace, pod, dry_run=True)
    if [one for one in taken["spec"].get("volumes") or () if "image" in one]:
        await check_image_volumes(world.ground.api, place, AGENT_IMAGE)
    else:
        with pytest.raises(Unavailable, match="agent_by_image_volume"):
            await check_image_volumes(world.ground.api, place, AGENT_IMAGE)


def composed(text: str) -> Template:
    compose = parse(text.replace("IMAGE", BUSYBOX_IMAGE))
    return Template(Image("d", workdir="/work", reference=BUSYBOX_IMAGE, sidecars=compose.sidecars), LIMITS)


SERVED = """
services:
  main:
    image: IMAGE
    volumes: ["page:/page:ro"]
    depends_on: {web: {condition: service_healthy}}
  seed:
    image: IMAGE
    command: [busybox, sh, -c, "busybox sleep 1; echo seeded > /data/index.html"]
    volumes: ["page:/data"]
  web:
    image: IMAGE
    hostname: pages
    command:
      - busybox
      - sh
      - -c
      - busybox sleep 2; while true; do busybox nc -l -p 8080 -e busybox cat /www/index.html; done
    volumes: ["page:/www"]
    mem_limit: 64m
    depends_on: {seed: {condition: service_completed_successfully}}
    healthcheck: {test: [CMD, busybox, grep, -q, ":1F90 ", /proc/net/tcp6], interval: 1s, retries: 60}
volumes: {page: }
"""


async def test_a_compose_task_is_one_pod_whose_services_are_ready_by_name(world: Replicas) -> None:
    async with world.runtime() as runtime:
        sandbox = await runtime.launch("composed", composed(SERVED), tag())
        agent = world.agent(sandbox)
        for name in ("web", "pages"):
            # At once: its health check has passed before main began.
            page = await agent.exec(["busybox", "nc", name, "8080"], timeout_s=10)
            assert page.stdout.head == b"seeded\n", page.stderr.head
        assert (await agent.exec(["busybox", "touch", "/page/x"], timeout_s=10)).exit_code != 0
        # Processes of a sidecar are not the task's to see or kill.
        seen = (await agent.exec(["busybox", "ps"], timeout_s=10)).stdout.head
        assert b"nc -l" not in seen
        await sandbox.stop(SandboxEnd(EndReason.DELETED, "released"))


async def test_memory_taken_by_the_task_leaves_its_sidecar_alive_centaur_498(world: Replicas) -> None:
    async with world.runtime() as runtime:
        sandbox = await runtime.launch("greedy", composed(SERVED), tag())
        agent = world.agent(sandbox)
        greedy = ["busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=1024M", "count=1"]
        result = await agent.exec(greedy, timeout_s=60)
        assert result.oom_killed
        page = await agent.exec(["busybox", "nc", "web", "8080"], timeout_s=10)
        assert page.stdout.head == b"seeded\n"
        await sandbox.stop(SandboxEnd(EndReason.DELETED, "released"))


async def test_a_service_that_cannot_start_is_named(world: Replicas) -> None:
    text = "services: {main: {image: IMAGE}, db: {image: IMAGE, command: [busybox, no-such-applet]}}"
    async with world.runtime() as runtime:
        with pytest.raises(SandboxFailed, match="container db") as failed:
            await runtime.launch("broken", composed(text), tag())
    assert failed.value.reason is EndReason.START_FAILED


async def test_a_service_that_fails_to_seed_is_named_with_what_it_said(world: Replicas) -> None:
    text = """
services:
  main: {image: IMAGE, depends_on: {seed: {condition: service_completed_successfully}}}
  seed: {image: IMAGE, command: [busybox, sh, -c, "echo no such table >&2; exit 7"]}
"""
    async with world.runtime() as runtime:
        with pytest.raises(SandboxFailed, match=r"container seed: .*status 7.*no such table") as failed:
            await runtime.launch("unseeded", composed(text), tag())
    assert failed.value.reason is EndReason.START_FAILED
