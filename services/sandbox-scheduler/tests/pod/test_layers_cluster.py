"""Dockerfiles that copy, on the real cluster: cold and from a pool that all tasks of a base share."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent.parent))

from pod_world import start_pod_world
from scheduler_world import World

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.domain.pools import PoolPolicy

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

DOCKERFILE = (
    "FROM longshore/base\nWORKDIR /app\nENV GREETING=hi\nCOPY files/ /app/\n"
    "COPY --chmod=700 tool.sh /usr/local/bin/tool\n"
)
LIMITS = sandbox_pb2.Limits(memory_mb=128, storage_mb=64)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("layers")
    async with start_pod_world(folder / "data", folder / "cache", pool=PoolPolicy(max_per_template=4)) as made:
        yield made


def copying(world: World, text: str) -> str:
    """A task whose Dockerfile copies a file of this text."""
    files = {"environment/files/deep/note": text, "environment/tool.sh": "#!/bin/sh\necho tool $GREETING\n"}
    return world.catalog.add({"environment/Dockerfile": DOCKERFILE, **files})


async def said(world: World, claimed: Any, script: str) -> str:
    result = await world.agent(claimed).exec(["sh", "-c", script], timeout_s=20)
    assert result.exit_code == 0, result.stderr.head
    return result.stdout.head.decode()


async def layers_sent() -> float:
    return next(s.value for s in metrics.LAYER_SECONDS.collect()[0].samples if s.name.endswith("_count"))


async def test_a_cold_pod_has_its_files_before_the_claim_answers_as_docker_would_copy_them(world: World) -> None:
    note = secrets.token_hex(4)
    claimed = await world.claim(copying(world, note), limits=LIMITS)
    assert claimed.sandbox.launch_type == sandbox_pb2.LAUNCH_TYPE_COLD
    assert await said(world, claimed, "pwd; cat deep/note; echo; tool") == f"/app\n{note}\ntool hi\n"
    modes = "stat -c '%a %U:%G' deep deep/note /usr/local/bin/tool /usr/local/bin"
    assert await said(world, claimed, modes) == "755 root:root\n644 root:root\n700 root:root\n755 root:root\n"
    assert await said(world, claimed, "find / -xdev -name '.longshore-*'") == ""
    await world.delete(claimed.sandbox.sandbox_id)


async def test_one_pool_serves_tasks_of_one_base_each_with_its_own_files(world: World) -> None:
    notes = [secrets.token_hex(4) for _ in range(3)]
    tasks = [copying(world, note) for note in notes]
    demand = [sandbox_pb2.Demand(task_digest=task, count=1, limits=LIMITS) for task in tasks]
    await world.scheduler.SetDemand(sandbox_pb2.SetDemandRequest(run_id="r", demands=demand))

    async def full() -> bool:
        pools = (await world.scheduler.ListPools(sandbox_pb2.ListPoolsRequest())).pools
        return [pool.ready for pool in pools] == [3]

    async with asyncio.timeout(90):
        while not await full():
            await asyncio.sleep(0.1)
    took, claims = [], []
    for task in tasks:
        began = time.monotonic()
        claims.append(await world.claim(task, run_id="r", limits=LIMITS))
        took.append(time.monotonic() - began)
    assert {claim.sandbox.launch_type for claim in claims} == {sandbox_pb2.LAUNCH_TYPE_WARM}
    assert [await said(world, claim, "cat deep/note") for claim in claims] == notes
    # Same base, other files: the digest says so.
    assert len({claim.sandbox.image_digest for claim in claims}) == 3
    assert min(took) < 1.0, took
    for claim in claims:
        await world.delete(claim.sandbox.sandbox_id)


async def test_a_base_that_has_a_link_in_the_way_refuses_the_claim_and_leaves_no_pod(world: World) -> None:
    task = world.catalog.add(
        {"environment/Dockerfile": "FROM longshore/base\nCOPY f /bin/own/f\n", "environment/f": "x"}
    )
    sent = await layers_sent()
    with pytest.raises(InvalidSpec, match=r"environment/Dockerfile: COPY over its base: .*/bin, which is no folder"):
        await world.claim(task, limits=LIMITS)
    assert await layers_sent() == sent
    listed = await world.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest())
    assert not listed.sandboxes
