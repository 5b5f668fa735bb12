"""5,000 sandboxes through the real API server, pods simulated by kwok: `make bench-sandbox-scale`.

Each is asked for by demand, made by the warm pool, claimed, and released. Only the nodes and the agents are simulated.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "services/sandbox-scheduler/tests"), str(ROOT / "bench")]

import psutil
from pod_world import GATEWAY, namespace, pod_settings, require_cluster
from results import Results
from scheduler_world import SIMPLE, World, start_world

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common import log
from longshore_sandbox_scheduler.bootstrap import Common, Parts
from longshore_sandbox_scheduler.domain.pools import WarmPools
from longshore_sandbox_scheduler.runtimes.pod.assembly import assemble
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.network import NetworkOptions
from longshore_sandbox_scheduler.runtimes.pod.network_policy import Peer, PolicyOptions
from longshore_sandbox_scheduler.settings import Settings

PODS = int(os.environ.get("BENCH_PODS", "5000"))
CALLERS = 64
METRICS = ("scale_lost", "scale_leaked", "scale_pods", "scale_seconds", "scale_rss_mb")
ON_KWOK = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": "kwok", "operator": "Exists", "effect": "NoSchedule"}],
}


class FakeAgentProber:
    """Every simulated pod's agent is said to answer."""

    async def answers(self, address: str, sandbox_id: str, instance: str) -> None:
        return


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def parts(settings: Settings, common: Common) -> Parts:
    tokens = common.tokens
    pods = await assemble(settings.pods, common.clock, tokens.public_key, tokens.mint, FakeAgentProber())
    pools = WarmPools(pods.runtime, common.clock, settings.pool, settings.max_sandboxes)
    return Parts(pods.runtime, pods.leadership, pools, (pods.leadership.run,), pods.api.close)


async def settled(what: str, world: World, condition: object, bound_s: float = 900.0) -> None:
    began = said = time.monotonic()
    async with asyncio.timeout(bound_s):
        while not (count := await condition())[0]:  # type: ignore[operator]
            await asyncio.sleep(0.5)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                say(f"bench: {what} {count[1]} after {said - began:.0f} s")


async def ready(world: World) -> tuple[bool, int]:
    pools = (await world.scheduler.ListPools(sandbox_pb2.ListPoolsRequest())).pools
    count = sum(pool.ready for pool in pools)
    return count >= PODS, count


async def claim_all(world: World, task: str) -> list[str]:
    """Ids of the sandboxes that CALLERS callers claimed."""
    found: list[str] = []
    left = iter(range(PODS))

    async def caller() -> None:
        for number in left:
            claimed = await world.claim(task, run_id=f"run-{number % 5}", attempt_id=f"attempt-{number}")
            found.append(claimed.sandbox.sandbox_id)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return found


async def release_all(world: World, names: list[str]) -> None:
    left = iter(names)

    async def caller() -> None:
        for name in left:
            await world.delete(name)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def measure(world: World, api: KubeApi, name: str, results: Results) -> None:
    process, began = psutil.Process(), time.perf_counter()
    task = world.catalog.dockerfile(SIMPLE)
    for run in range(5):
        demand = sandbox_pb2.Demand(task_digest=task, count=PODS // 5)
        await world.scheduler.SetDemand(sandbox_pb2.SetDemandRequest(run_id=f"run-{run}", demands=[demand]))
    await settled("ready", world, lambda: ready(world))
    made = time.perf_counter()
    claimed = await claim_all(world, task)
    taken = time.perf_counter()
    rss_mb = process.memory_info().rss / 1e6
    server = {pod["metadata"]["name"] for pod in (await api.list("pods", name, "longshore.dev/state=claimed")).items}
    lost = len(claimed) - len(set(claimed)) + len(set(claimed) - server)
    await release_all(world, claimed)
    released = time.perf_counter()

    async def gone() -> tuple[bool, int]:
        left = len((await api.list("pods", name)).items)
        return left == 0, left

    try:
        await settled("left", world, gone, 600.0)
    except TimeoutError:
        say("bench: some pods are still there")
    results.shown("scale_pods", len(claimed), "")
    results.at_most("scale_lost", lost + PODS - len(claimed), "", 0)
    results.at_most("scale_leaked", (await gone())[1], "", 0)
    results.shown("scale_seconds", time.perf_counter() - began, "s")
    results.shown("scale_rss_mb", rss_mb, "MB")
    results.notes += [
        f"made {PODS / (made - began):.0f}/s, claimed {PODS / (taken - made):.0f}/s, "
        f"released {PODS / (released - taken):.0f}/s; callers, catalog and API client are in the same process",
    ]


async def run() -> int:
    log.configure(os.environ.get("BENCH_LOG", "error"))
    results = Results("sandbox_scale", METRICS)
    kubeconfig = require_cluster()
    # kwok's pods have no network to isolate.
    gateway = PolicyOptions(gateway=(Peer(cidr=f"{GATEWAY}/32"),), gateway_port=7403)
    network = NetworkOptions(policy=gateway, unenforced_allowed=True)
    async with namespace(kubeconfig) as (api, name):
        pods = pod_settings(kubeconfig, name, pod=ON_KWOK, network=network, cpu_request=0.001, memory_request=0.001)
        with tempfile.TemporaryDirectory() as folder:
            async with start_world(
                Path(folder),
                Path(folder),
                parts,
                runtime="pod",
                pods=pods,
                secret="bench",
                max_sandboxes=PODS,
                pool={"max_per_template": PODS, "refill_per_s": 1000},
                orphan_sweep_interval_s=3600,
                sweep_interval_s=5,
            ) as world:
                await measure(world, api, name, results)
    return results.finish()


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
