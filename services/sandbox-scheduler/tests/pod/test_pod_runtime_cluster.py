"""The pod runtime on the real cluster: starts, claims, and every way a pod ends. Rows of the anchors' bug list."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from real_cluster import BUSYBOX_IMAGE, kubeconfig
from runtime_ground import LIMITS, TEMPLATE, Replicas, replicas, tag, until

from longshore_common.errors import LongshoreError
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Template
from longshore_sandbox_scheduler.domain.runtime import SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.runtimes.pod import pod_spec
from longshore_sandbox_scheduler.runtimes.pod.kube_api import CALLS
from longshore_sandbox_scheduler.runtimes.pod.pod_runtime import PodRuntime, PodSandbox

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

DONE = SandboxEnd(EndReason.DELETED, "released")


def name() -> str:
    return f"sb-{secrets.token_hex(5)}"


def of(image: str, **limits: Any) -> Template:
    return Template(Image("of", workdir="/work", reference=image), replace(LIMITS, **limits))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world() -> AsyncIterator[Replicas]:
    async with replicas() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runtime(world: Replicas) -> AsyncIterator[PodRuntime]:
    async with world.runtime() as made:
        yield made


async def end_of(sandbox: PodSandbox, within_s: float = 60.0) -> SandboxEnd:
    async with asyncio.timeout(within_s):
        return await asyncio.shield(sandbox.ended)


def writes() -> float:
    """Our own API writes of pods so far."""
    return sum(
        sample.value
        for metric in CALLS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
        and sample.labels["resource"] == "pods"
        and sample.labels["verb"] in ("create", "patch", "update", "delete")
    )


async def test_a_pod_is_bare_and_owned_and_tells_a_task_nothing(world: Replicas, runtime: PodRuntime) -> None:
    sandbox = await runtime.launch(name(), TEMPLATE, tag("bare"))
    pod = (await world.pods())[sandbox.sandbox_id]
    assert pod["metadata"]["ownerReferences"] == [dict(world.ground.place.owner)]
    assert pod["metadata"]["annotations"]["longshore.dev/attempt"] == "bare"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] == 3600
    assert not [one for one in pod["spec"]["volumes"] if "projected" in one]
    agent = world.agent(sandbox)
    env = (await agent.exec(["busybox", "env"], timeout_s=10)).stdout.head.decode()
    assert "KUBERNETES" not in env
    assert "LONGSHORE" not in env
    refused = await agent.exec(["busybox", "touch", f"{pod_spec.AGENT_FOLDER}/x"], timeout_s=10)
    assert b"Read-only" in refused.stderr.head
    # MKNOD is not among the capabilities: no device can be made.
    assert (await agent.exec(["busybox", "mknod", "/work/sda", "b", "8", "0"], timeout_s=10)).exit_code != 0
    where = await agent.exec(["busybox", "pwd"], timeout_s=10)
    assert where.stdout.head == b"/work\n"
    await sandbox.stop(DONE)


@pytest.mark.smoke
async def test_one_life_costs_three_writes_of_ours_sandbox_operator_33(world: Replicas, runtime: PodRuntime) -> None:
    before = writes()
    warm = name()
    await runtime.start_warm(warm, TEMPLATE)
    await until(lambda: [one for one in runtime.warm() if one.sandbox_id == warm and one.ready], "a ready warm pod")
    sandbox = await runtime.claim(warm, TEMPLATE, tag("three"))
    assert sandbox is not None
    result = await world.agent(sandbox).exec(["busybox", "echo", "hi"], timeout_s=10)
    assert result.stdout.head == b"hi\n"
    await sandbox.stop(DONE)
    await until(lambda: warm not in runtime._informer.objects, "the pod's end")
    assert writes() - before == 3


async def test_a_claim_marks_the_pod_and_gives_it_a_deadline_that_it_did_not_have(
    world: Replicas, runtime: PodRuntime
) -> None:
    warm = name()
    await runtime.start_warm(warm, TEMPLATE)
    await until(lambda: warm in runtime._informer.objects, "a warm pod")
    pod = (await world.pods())[warm]
    assert "activeDeadlineSeconds" not in pod["spec"]
    # Network plugins annotate pods; a claim must not undo that.
    note = {"metadata": {"annotations": {"cni.example/ip": "1.2.3.4"}}}
    await world.ground.api.patch("pods", world.ground.namespace, warm, note)
    sandbox = await runtime.claim(warm, TEMPLATE, tag("mark", deadline_s=1000.0))
    assert sandbox is not None
    pod = (await world.pods())[warm]
    assert 1000 <= pod["spec"]["activeDeadlineSeconds"] <= 1060
    assert pod["metadata"]["labels"]["longshore.dev/state"] == "claimed"
    assert pod["metadata"]["annotations"]["longshore.dev/claim-key"] == "key-mark"
    assert pod["metadata"]["annotations"]["cni.example/ip"] == "1.2.3.4"
    assert await runtime.claim(warm, TEMPLATE, tag("again")) is None
    await runtime.discard(warm)
    assert warm in await world.pods()
    await sandbox.stop(DONE)


@pytest.mark.slow
async def test_fifty_racing_claims_on_fifty_warm_give_fifty_distinct_agent_sandbox_418(world: Replicas) -> None:
    """Two replicas race for all of them, each from its own picture."""
    async with world.runtime() as one, world.runtime() as other:
        names = [name() for _ in range(50)]
        await asyncio.gather(*(one.start_warm(each, TEMPLATE) for each in names))
        for replica in (one, other):
            known = lambda of_=replica: set(names) <= of_._informer.objects.keys()  # noqa: E731
            await until(known, "fifty warm pods in both pictures")
        tries = [(replica, each) for each in names for replica in (one, other)]
        taken = await asyncio.gather(
            *(replica.claim(each, TEMPLATE, tag(f"{i}")) for i, (replica, each) in enumerate(tries)),
            return_exceptions=True,
        )
        assert not [each for each in taken if isinstance(each, BaseException)]
        got = [each for each in taken if isinstance(each, PodSandbox)]
        assert sorted(each.sandbox_id for each in got) == sorted(names)
        assert len({each.instance for each in got}) == 50
        await until(lambda: not one.warm() and not other.warm(), "no warm pod left")
        await asyncio.gather(*(each.stop(DONE) for each in got))


async def test_a_used_pod_is_never_handed_out_again_opensandbox_723(world: Replicas, runtime: PodRuntime) -> None:
    """Its scheduler dies between the claim and the release: nobody else gets it, and a sweep removes it."""
    warm = name()
    async with world.runtime() as dying:
        await dying.start_warm(warm, TEMPLATE)
        await until(lambda: warm in dying._informer.objects, "a warm pod")
        assert await dying.claim(warm, TEMPLATE, tag("dying")) is not None
    async with world.runtime(start_grace_s=0.0) as next_one:
        assert warm not in {one.sandbox_id for one in next_one.warm()}
        assert await next_one.claim(warm, TEMPLATE, tag("thief")) is None
        removed = await next_one.sweep(keep=())
        assert warm in {one.name for one in removed}
    await until(lambda: warm not in runtime._informer.objects, "the swept pod's end")


# -- ends


@pytest.mark.smoke
async def test_a_deletion_by_somebody_else_is_told_within_seconds_and_remembered(
    world: Replicas, runtime: PodRuntime
) -> None:
    sandbox = await runtime.launch(name(), TEMPLATE, tag())
    agent = world.agent(sandbox)
    sleeping = asyncio.create_task(agent.exec(["busybox", "sleep", "600"], timeout_s=601))
    await asyncio.sleep(0.3)
    await world.ground.api.delete("pods", world.ground.namespace, sandbox.sandbox_id)
    end = await end_of(sandbox, 10)
    assert end.reason is EndReason.DELETED
    with pytest.raises(LongshoreError):
        async with asyncio.timeout(60):
            await sleeping
    await until(lambda: sandbox.sandbox_id not in runtime._informer.objects, "the pod's end")
    later = await runtime.find(sandbox.sandbox_id, sandbox.instance)
    assert isinstance(later, SandboxEnd)
    assert later.reason is EndReason.DELETED


async def test_a_deadline_ends_the_pod_itself(runtime: PodRuntime) -> None:
    sandbox = await runtime.launch(name(), TEMPLATE, tag(deadline_s=6.0))
    assert (await end_of(sandbox)).reason is EndReason.DEADLINE_EXCEEDED


async def test_an_agent_that_is_killed_from_outside_is_a_typed_loss(world: Replicas, runtime: PodRuntime) -> None:
    sandbox = await runtime.launch(name(), TEMPLATE, tag())
    # From inside it cannot be killed: it is the init of its namespace.
    inside = await world.agent(sandbox).exec(["busybox", "kill", "-9", "1"], timeout_s=10)
    assert inside.exit_code == 0
    assert (await world.agent(sandbox).exec(["busybox", "true"], timeout_s=10)).exit_code == 0
    os.kill(init_of(sandbox.instance), signal.SIGKILL)
    end = await end_of(sandbox, 20)
    assert end.reason is EndReason.LOST
    assert "137" in end.detail
    await until(lambda: sandbox.sandbox_id not in runtime._informer.objects, "the dead pod's removal")


def init_of(uid: str) -> int:
    """Host pid of the agent that serves in a pod; tests run on the node."""
    wanted = f"LONGSHORE_AGENT_INSTANCE={uid}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            if argv[1:2] == [b"serve"] and wanted in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no agent of {uid} on this machine")


async def test_memory_beyond_the_limit_is_told_of_the_command_centaur_1454(
    world: Replicas, runtime: PodRuntime
) -> None:
    sandbox = await runtime.launch(name(), of(BUSYBOX_IMAGE, memory_mb=64), tag())
    greedy = ["busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=1024M", "count=1"]
    try:
        result = await world.agent(sandbox).exec(greedy, timeout_s=60)
    except LongshoreError:
        # Where the whole container is killed (cgroup v2), the pod says so.
        assert (await end_of(sandbox)).reason is EndReason.OOM
        return
    assert result.oom_killed
    assert result.exit_code != 0
    await sandbox.stop(DONE)


@pytest.mark.slow
async def test_a_full_disk_is_an_eviction_and_not_a_success_decocms_7011(world: Replicas, runtime: PodRuntime) -> None:
    sandbox = await runtime.launch(name(), of(BUSYBOX_IMAGE, storage_mb=50), tag())
    fill = ["busybox", "dd", "if=/dev/zero", "of=/work/big", "bs=1M", "count=200"]
    result = await world.agent(sandbox).exec(fill, timeout_s=60)
    assert result.exit_code == 0
    end = await end_of(sandbox, 120)
    assert end.reason is EndReason.EVICTED, end
    assert "ephemeral" in end.detail.lower()


# -- starts that fail


async def refusal(runtime: PodRuntime, template: Template, within_s: float = 30.0) -> SandboxFailed:
    """The typed error of a launch, and how it leaves nothing behind."""
    sandbox_id = name()
    with pytest.raises(SandboxFailed) as failed:
        async with asyncio.timeout(within_s):
            await runtime.launch(sandbox_id, template, tag())
    await until(lambda: sandbox_id not in runtime._informer.objects, "the failed pod's removal")
    return failed.value


async def test_an_impossible_image_name_fails_at_once_actions_runner_controller_4654(runtime: PodRuntime) -> None:
    # Kubelets tell a pod with init containers of it at their next look, 10 to 15 s later.
    error = await refusal(runtime, of("localhost/UPPER:case:case"), 40)
    assert error.reason is EndReason.IMAGE_PULL
    assert "InvalidImageName" in error.message


async def test_an_absent_image_that_may_not_be_pulled_fails_at_once(world: Replicas) -> None:
    async with world.runtime(image_pull_policy="Never") as never:
        error = await refusal(never, of("localhost/longshore/no-such-image:dev"), 40)
    assert error.reason is EndReason.IMAGE_PULL
    assert "ErrImageNeverPull" in error.message


async def test_a_registry_that_does_not_answer_gets_a_bounded_grace(runtime: PodRuntime) -> None:
    began = time.monotonic()
    error = await refusal(runtime, of("127.0.0.1:9/longshore/nothing:1"))
    assert error.reason is EndReason.IMAGE_PULL
    assert "connection refused" in error.message
    # Not at the first try: it might have come back.
    assert time.monotonic() - began > 5


async def test_what_no_node_can_hold_is_unschedulable_with_the_schedulers_words(world: Replicas) -> None:
    async with world.runtime(cpu_request=1.0) as exact:
        error = await refusal(exact, of(BUSYBOX_IMAGE, cpus=500), 20)
    assert error.reason is EndReason.UNSCHEDULABLE
    assert "Insufficient cpu" in error.message


async def test_pod_security_is_told_as_what_it_is(world: Replicas) -> None:
    async with world.runtime(pod={"hostNetwork": True}) as outside:
        error = await refusal(outside, TEMPLATE, 10)
    assert error.reason is EndReason.START_FAILED
    assert "PodSecurity" in error.message
    assert not error.retryable


@pytest.mark.smoke
async def test_a_quota_of_two_refuses_the_third_in_about_a_second_opensandbox_1750() -> None:
    async with replicas() as small, small.runtime() as runtime:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "two-pods"},
            "spec": {"hard": {"pods": "2"}},
        }
        await small.ground.api.create("resourcequotas", small.ground.namespace, quota)
        await asyncio.sleep(1)
        running = await asyncio.gather(*(runtime.launch(name(), TEMPLATE, tag()) for _ in range(2)))
        began = time.monotonic()
        with pytest.raises(SandboxFailed) as refused:
            await runtime.launch(name(), TEMPLATE, tag())
        assert time.monotonic() - began < 5
        assert refused.value.reason is EndReason.QUOTA
        assert "two-pods" in refused.value.message
        assert len(await small.pods()) == 2
        await asyncio.gather(*(each.stop(DONE) for each in running))


# -- replicas and sweeps


async def test_another_replica_finds_a_sandbox_at_once_and_serves_it(world: Replicas, runtime: PodRuntime) -> None:
    async with world.runtime() as other:
        sandbox = await runtime.launch(name(), TEMPLATE, tag())
        found = await other.find(sandbox.sandbox_id, sandbox.instance)
        assert isinstance(found, PodSandbox)
        assert (await world.agent(found).exec(["busybox", "true"], timeout_s=10)).exit_code == 0
        await sandbox.stop(DONE)
        assert (await end_of(found, 20)).reason is EndReason.DELETED
        fenced = await other.find(sandbox.sandbox_id, "another-uid")
        assert isinstance(fenced, SandboxEnd)


DIES = """
import asyncio, os, signal, sys
sys.path.insert(0, {here!r})
from runtime_ground import *
from real_cluster import Ground, opened
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

async def main():
    async with opened() as api:
        world = Replicas(Ground(api, Placement({namespace!r}, "r1", {owner!r})), AgentChannels())
        async with world.runtime() as runtime:
            step = {step!r}
            if step == "created":
                await runtime._create("dies-created", TEMPLATE, tag())
            elif step == "running":
                await runtime.launch("dies-running", TEMPLATE, tag())
            elif step == "unanswered":
                asyncio.create_task(runtime.launch("dies-unanswered", TEMPLATE, tag()))
                await until(lambda: "dies-unanswered" in runtime._informer.objects, "the pod")
            elif step == "claimed":
                await runtime.start_warm("dies-claimed", TEMPLATE)
                await until(lambda: "dies-claimed" in runtime._informer.objects, "a warm pod")
                assert await runtime.claim("dies-claimed", TEMPLATE, tag())
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_nothing_is_left_after_a_kill_at_any_step_and_one_sweep_inspect_250_centaur_538() -> None:
    async with replicas() as small:
        here = str(Path(__file__).parent)
        for step in ("created", "unanswered", "running", "claimed"):
            place = small.ground.place
            script = DIES.format(here=here, namespace=place.namespace, owner=dict(place.owner), step=step)
            env = {**os.environ, "KUBECONFIG": kubeconfig()}
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=env)
            assert await child.wait() == -signal.SIGKILL, step
        assert set(await small.pods()) == {"dies-created", "dies-unanswered", "dies-running", "dies-claimed"}
        async with small.runtime(start_grace_s=0.0) as next_one:
            told = await next_one.sweep(keep=(), dry_run=True)
            assert len(await small.pods()) == 4
            removed = await next_one.sweep(keep=())
            assert {one.name for one in told} == {one.name for one in removed} == set(next_one._informer.objects)
            for _ in range(100):
                if not await small.pods("app.kubernetes.io/managed-by=longshore"):
                    break
                await asyncio.sleep(0.1)
        assert not await small.pods("app.kubernetes.io/managed-by=longshore")


async def test_a_sweep_leaves_what_is_kept_warm_or_young(world: Replicas) -> None:
    async with world.runtime(start_grace_s=0.0) as hasty, world.runtime() as patient:
        kept = await hasty.launch(name(), TEMPLATE, tag())
        warm = name()
        await hasty.start_warm(warm, TEMPLATE)
        await until(lambda: warm in {one.sandbox_id for one in patient.warm()}, "the warm pod")
        assert {kept.sandbox_id, warm}.isdisjoint({one.name for one in await hasty.sweep(keep=[kept.sandbox_id])})
        # Its claim is seconds old: the record may be on its way.
        assert kept.sandbox_id not in {one.name for one in await patient.sweep(keep=())}
        assert {kept.sandbox_id, warm} <= set(await world.pods())
        await hasty.discard(warm)
        await kept.stop(DONE)


async def test_all_goes_when_the_releases_owner_goes() -> None:
    async with replicas() as small, small.runtime() as runtime:
        sandbox = await runtime.launch(name(), TEMPLATE, tag())
        owner = str(small.ground.place.owner["name"])
        await small.ground.api.delete("configmaps", small.ground.namespace, owner)
        assert (await end_of(sandbox, 60)).reason is EndReason.DELETED


# -- through the API server


async def test_through_the_api_server_commands_keep_their_status_and_bytes_kubernetes_137404_124571(
    world: Replicas,
) -> None:
    async with world.runtime(through_api=True) as tunnelled:
        assert tunnelled.name == "pod-exec"
        sandbox = await tunnelled.launch(name(), TEMPLATE, tag())
        access = sandbox.access
        assert not access.direct
        agent = world.agent(sandbox)
        assert (await agent.exec(["busybox", "sh", "-c", "exit 3"], timeout_s=10)).exit_code == 3
        raw = await agent.exec(["busybox", "printf", r"\324\000\n"], timeout_s=10)
        assert raw.stdout.head == b"\xd4\x00\n"
        big = await agent.exec(["busybox", "seq", "1", "2000000"], timeout_s=60, output_cap=32 * 1024 * 1024)
        assert big.stdout.head == b"".join(b"%d\n" % i for i in range(1, 2_000_001))
        await sandbox.stop(DONE)
        await until(lambda: sandbox.sandbox_id not in tunnelled._informer.objects, "the pod's end")
        path = Path(access.address.removeprefix("unix:"))
        await until(lambda: not path.exists(), "the tunnel's end")


async def test_a_tunnel_that_breaks_is_attached_to_again_and_nothing_runs_twice(world: Replicas) -> None:
    async with world.runtime(through_api=True) as tunnelled:
        sandbox = await tunnelled.launch(name(), TEMPLATE, tag())
        script = "echo x >> /work/once; busybox sleep 3; exit 3"
        running = asyncio.create_task(world.agent(sandbox).exec(["busybox", "sh", "-c", script], timeout_s=30))
        await asyncio.sleep(1)
        ways: Any = tunnelled._ways
        bridges = [bridge for tunnel in ways._tunnels.values() for bridge in tunnel.bridges]
        assert bridges
        for bridge in bridges:
            bridge.cancel()
        assert (await running).exit_code == 3
        once = await world.agent(sandbox).exec(["busybox", "cat", "/work/once"], timeout_s=10)
        assert once.stdout.head == b"x\n"
        await sandbox.stop(DONE)
