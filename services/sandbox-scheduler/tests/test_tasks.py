"""Tasks as the catalog knows them: image and network reach the scheduler; what a runtime cannot do is said once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scheduler_world import SIMPLE, FakeCatalog, World, start_catalog

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.clients.catalog import GrpcTasks
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass


@asynccontextmanager
async def tasks_over(catalog: FakeCatalog) -> AsyncIterator[GrpcTasks]:
    async with start_catalog(catalog) as address:
        tasks = GrpcTasks(address, "", 600.0)
        yield tasks
        await tasks.close()


@pytest.mark.parametrize(
    ("mode", "hosts", "expected"),
    [
        ("", [], None),
        ("no-network", [], Network(NetworkClass.NO_NETWORK)),
        ("public", [], Network(NetworkClass.PUBLIC)),
        (
            "allowlist",
            ["*.b.example", "192.0.2.0/24", "a.example", "2001:db8::/32"],
            Network(NetworkClass.ALLOWLIST, ("192.0.2.0/24", "2001:db8::/32"), ("a.example", "*.b.example")),
        ),
    ],
)
async def test_a_tasks_network_and_image_are_passed_on(mode: str, hosts: list[str], expected: Network | None) -> None:
    catalog = FakeCatalog()
    digest = catalog.dockerfile(SIMPLE)
    task = catalog.tasks[digest]
    task.docker_image, task.network_mode = "registry.example/task@sha256:ab", mode
    task.allowed_hosts.extend(hosts)
    async with tasks_over(catalog) as tasks:
        environment = await tasks.environment(digest)
    assert environment.docker_image == "registry.example/task@sha256:ab"
    assert environment.network == expected


@pytest.mark.parametrize(
    ("mode", "hosts", "part"),
    [
        ("vpn", [], "'vpn' is not known"),
        ("allowlist", [], "at least one"),
        ("allowlist", ["not a host"], "no host name"),
    ],
)
async def test_a_network_that_cannot_be_meant_names_the_task(mode: str, hosts: list[str], part: str) -> None:
    catalog = FakeCatalog()
    digest = catalog.dockerfile(SIMPLE)
    catalog.tasks[digest].name, catalog.tasks[digest].network_mode = "acme/count", mode
    catalog.tasks[digest].allowed_hosts.extend(hosts)
    async with tasks_over(catalog) as tasks:
        with pytest.raises(InvalidSpec, match=f"acme/count.*{part}"):
            await tasks.environment(digest)


async def test_a_network_the_runtime_does_not_offer_is_left_out_for_tasks_and_refused_for_callers(world: World) -> None:
    digest = world.catalog.dockerfile(SIMPLE)
    world.catalog.tasks[digest].network_mode = "public"
    claimed = await world.claim(digest)
    assert claimed.sandbox.network_class == sandbox_pb2.NETWORK_CLASS_NO_NETWORK
    wish = sandbox_pb2.Network(network_class=sandbox_pb2.NETWORK_CLASS_PUBLIC)
    with pytest.raises(InvalidSpec, match="public is not granted by runtime bubblewrap"):
        await world.claim(digest, network=wish)


@pytest.mark.parametrize("name", ["docker-compose.yaml", "docker-compose.yml"])
async def test_a_compose_task_is_refused_by_the_local_runtime(world: World, name: str) -> None:
    files = {"environment/Dockerfile": SIMPLE, f"environment/{name}": "services: {main: {build: .}, db: {image: x}}\n"}
    request = sandbox_pb2.PrepareImageRequest(task_digest=world.catalog.add(files))
    with pytest.raises(InvalidSpec, match=f"environment/{name}: several containers need the pod runtime") as refused:
        await world.scheduler.PrepareImage(request)
    assert refused.value.field == f"environment/{name}"
