"""Sandboxes on the real cluster against what they replace, in one run: `make bench-sandbox`.

Exec by the agent against pods/exec, a warm claim against a cold start, files by the agent against tar over exec, and
what one sandbox life writes to the API server, by our count and by the server's own.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "services/sandbox-scheduler/tests"), str(ROOT / "bench")]

import aiohttp
from pod_world import AGENT_IMAGE, require_cluster, start_pod_world
from results import Results, median
from scheduler_world import SIMPLE, World

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common import log
from longshore_sandbox_scheduler.runtimes.pod.images import ImageOptions
from longshore_sandbox_scheduler.runtimes.pod.kube_api import CALLS, KubeApi, KubeOptions

IMAGE = os.environ.get("BENCH_IMAGE", "localhost/longshore/busybox:dev")
BUSYBOX = "/bin/busybox"
AGENT_EXECS, POD_EXECS = 200, 50
COLD, WARM, LIVES = 6, 12, 12
FILE_BYTES = 64 * 1024 * 1024
FRAME = 256 * 1024
_WRITES = ("POST", "PUT", "PATCH", "DELETE", "APPLY")
_OWN_WRITES = ("create", "patch", "update", "delete")
# Not what a sandbox causes: heartbeats, and questions that the API server counts as POST.
_OTHERS = ("leases", "subjectaccessreviews", "tokenreviews", "selfsubjectaccessreviews", "serviceaccounts")

METRICS = ("exec_ratio", "claim_ratio", "upload_ratio", "download_ratio", "writes_own", "writes_total")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


class PodsExec:
    """Commands by `pods/exec` over a websocket, as platforms without an agent do it."""

    def __init__(self, api: KubeApi, namespace: str, pod: str) -> None:
        self._api, self._namespace, self._pod = api, namespace, pod

    async def run(self, command: Sequence[str], stdin: bytes | None = None) -> bytes:
        """Its stdout, once the status frame says success."""
        socket = await self._api.exec_stream(self._namespace, self._pod, "main", command)
        sending = asyncio.create_task(self._send(socket, stdin))
        output, status = bytearray(), b""
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            if message.data[0] == 1:
                output += message.data[1:]
            elif message.data[0] == 3:
                status = message.data[1:]
                break
        await sending
        await socket.close()
        if b'"Success"' not in status:
            raise RuntimeError(f"pods/exec {command}: {status!r}")
        return bytes(output)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, stdin: bytes | None) -> None:
        for start in range(0, len(stdin or b""), FRAME):
            await socket.send_bytes(b"\x00" + (stdin or b"")[start : start + FRAME])
        await socket.send_bytes(b"\xff\x00")  # Half-close, which protocol version 5 has.


async def exec_ratio(world: World, api: KubeApi, results: Results) -> None:
    """Round trips of the same program, in turns."""
    claimed = await world.claim()
    agent, exec_ = world.agent(claimed), PodsExec(api, world.settings.pods.namespace, claimed.sandbox.sandbox_id)
    by_agent, by_exec = [], []
    for number in range(AGENT_EXECS):
        by_agent.append(await timed(lambda: agent.exec([BUSYBOX, "true"], timeout_s=10)))
        if number % (AGENT_EXECS // POD_EXECS) == 0:
            by_exec.append(await timed(lambda: exec_.run([BUSYBOX, "true"])))
    results.at_most("exec_ratio", median(by_agent) / median(by_exec), "", 0.1)
    results.notes.append(f"exec: agent {1000 * median(by_agent):.1f} ms, pods/exec {1000 * median(by_exec):.1f} ms")
    await world.delete(claimed.sandbox.sandbox_id)


async def first_command(world: World, task: str) -> float:
    """Seconds from the claim to the end of its first command."""
    began = time.perf_counter()
    claimed = await world.claim(task, run_id="bench")
    await world.agent(claimed).exec([BUSYBOX, "true"], timeout_s=10)
    return time.perf_counter() - began


async def claim_ratio(world: World, results: Results) -> None:
    """Claims without a pool, then with one."""
    task = world.catalog.dockerfile(SIMPLE)
    cold = [await first_command(world, task) for _ in range(COLD)]
    demand = sandbox_pb2.Demand(task_digest=task, count=WARM)
    await world.scheduler.SetDemand(sandbox_pb2.SetDemandRequest(run_id="bench", demands=[demand]))
    await _until_ready(world, WARM)
    warm = [await first_command(world, task) for _ in range(WARM)]
    results.at_most("claim_ratio", median(warm) / median(cold), "", 0.05)
    results.notes.append(f"claim to first command: warm {1000 * median(warm):.0f} ms, cold {median(cold):.2f} s")
    for sandbox in (await world.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest())).sandboxes:
        await world.delete(sandbox.sandbox_id)


async def _until_ready(world: World, count: int) -> None:
    """Waits for warm sandboxes; the bound only keeps a fault from hanging the benchmark."""
    async with asyncio.timeout(120):
        while True:
            pools = (await world.scheduler.ListPools(sandbox_pb2.ListPoolsRequest())).pools
            if any(pool.ready >= count for pool in pools):
                return
            await asyncio.sleep(0.1)


async def transfer_ratios(world: World, api: KubeApi, results: Results) -> None:
    """One file up and down, against tar over pods/exec."""
    import io
    import tarfile

    data = os.urandom(FILE_BYTES)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("by-tar")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    claimed = await world.claim()
    agent, exec_ = world.agent(claimed), PodsExec(api, world.settings.pods.namespace, claimed.sandbox.sandbox_id)
    up, up_tar, down, down_tar = [], [], [], []
    for _ in range(3):
        up.append(await timed(lambda: agent.upload("/work/by-agent", data)))
        up_tar.append(await timed(lambda: exec_.run([BUSYBOX, "tar", "xf", "-", "-C", "/"], buffer.getvalue())))
        down.append(await timed(lambda: agent.download("/work/by-agent", max_bytes=FILE_BYTES)))
        down_tar.append(await timed(lambda: exec_.run([BUSYBOX, "tar", "cf", "-", "-C", "/", "by-tar"])))
    assert await agent.download("/work/by-agent", max_bytes=FILE_BYTES) == data
    results.at_least("upload_ratio", median(up_tar) / median(up), "x", 1.0)
    results.at_least("download_ratio", median(down_tar) / median(down), "x", 1.0)
    speeds = (f"{FILE_BYTES / 1e6 / median(seconds):.0f}" for seconds in (up, up_tar, down, down_tar))
    results.notes.append("MB/s: up {} (tar over exec {}), down {} (tar over exec {})".format(*speeds))
    await world.delete(claimed.sandbox.sandbox_id)


def own_writes() -> Counter[str]:
    """Writing calls of this process, by its own counter; the leader's heartbeat is not a sandbox's."""
    found: Counter[str] = Counter()
    for one in next(iter(CALLS.collect())).samples:
        heartbeat = one.labels["resource"] in _OTHERS
        if one.name.endswith("_total") and one.labels["verb"] in _OWN_WRITES and not heartbeat:
            found[f"{one.labels['verb']} {one.labels['resource']} {one.labels['code']}"] += int(one.value)
    return found


async def server_writes(api: KubeApi) -> Counter[str]:
    """Writes by resource, by the API server's own counters."""
    found: Counter[str] = Counter()
    for labels, value in re.findall(r"^apiserver_request_total\{(.*?)\} (\S+)$", await api.metrics(), re.M):
        fields = dict(re.findall(r'(\w+)="(.*?)"', labels))
        if fields["verb"] in _WRITES and fields["resource"] not in _OTHERS:
            found[f"{fields['resource']}/{fields['subresource']}".rstrip("/")] += float(value)
    return found


async def _life(world: World) -> None:
    """Made ahead, claimed, used, deleted."""
    task = world.catalog.dockerfile(SIMPLE)
    demand = sandbox_pb2.Demand(task_digest=task, count=1)
    await world.scheduler.SetDemand(sandbox_pb2.SetDemandRequest(run_id="bench", demands=[demand]))
    await _until_ready(world, 1)
    claimed = await world.claim(task, run_id="bench")
    await world.agent(claimed).exec([BUSYBOX, "true"], timeout_s=10)
    await world.delete(claimed.sandbox.sandbox_id)


async def writes(world: World, api: KubeApi, results: Results) -> None:
    """Warm lives, one after the other: made, claimed, used, deleted; what the idle cluster writes is taken off."""
    await _life(world)  # Policies of the class are made once, not for each sandbox.
    await asyncio.sleep(5)
    quiet_began, before_quiet = time.perf_counter(), await server_writes(api)
    await asyncio.sleep(15)
    quiet_s, after_quiet = time.perf_counter() - quiet_began, await server_writes(api)
    idle_per_s = sum((after_quiet - before_quiet).values()) / quiet_s
    began, own, server = time.perf_counter(), own_writes(), await server_writes(api)
    for _ in range(LIVES):
        await _life(world)
    await asyncio.sleep(5)
    seconds = time.perf_counter() - began
    by_resource = await server_writes(api) - server
    ours = own_writes() - own
    results.at_most("writes_own", sum(ours.values()) / LIVES, "", 3)
    results.notes.append("own writes per life: " + ", ".join(f"{k} {v / LIVES:.1f}" for k, v in ours.most_common()))
    results.shown("writes_total", (sum(by_resource.values()) - idle_per_s * seconds) / LIVES, "")
    parts = ", ".join(f"{name} {count / LIVES:.1f}" for name, count in by_resource.most_common(6))
    results.notes.append(f"API writes per life, idle ones not taken off: {parts}")


async def run() -> int:
    log.configure("error")
    results = Results("sandbox", METRICS)
    api = await KubeApi.open(KubeOptions(require_cluster()))
    pods = {"images": ImageOptions(bases={"longshore/base": IMAGE}), "agent_image": AGENT_IMAGE}
    chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        async with start_pod_world(
            Path(folder), Path(folder), pods=pods, pool={"max_per_template": 32}, orphan_sweep_interval_s=600
        ) as world:
            for name, work in (
                ("exec", exec_ratio(world, api, results)),
                ("claims", claim_ratio(world, results)),
                ("files", transfer_ratios(world, api, results)),
                ("writes", writes(world, api, results)),
            ):
                if chosen and name not in chosen:
                    work.close()
                    continue
                say(f"bench: {name}")
                await work
    await api.close()
    return results.finish()


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
