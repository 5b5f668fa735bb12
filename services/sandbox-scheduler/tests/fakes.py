"""A warm runtime in memory, for what cannot be had by the thousand here; it behaves as pods do, instantly."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_sandbox_scheduler.domain.model import EndReason, Image, NetworkClass, Template
from longshore_sandbox_scheduler.domain.runtime import (
    ClaimTag,
    PreparedImage,
    RemoteAgent,
    Removed,
    SandboxEnd,
    SandboxFailed,
    WarmSandbox,
)


@dataclass(eq=False)
class FakePod:
    """One sandbox of the fake cluster."""

    sandbox_id: str
    template: Template
    tag: ClaimTag | None = None
    ready: bool = True
    ended: asyncio.Future[SandboxEnd] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    enforcement: Mapping[str, str] = field(default_factory=dict)
    node: str = "node"
    image_digest: str = ""
    access: RemoteAgent = field(default_factory=lambda: RemoteAgent("127.0.0.1:1"))
    cluster: FakeCluster | None = None

    @property
    def instance(self) -> str:
        return f"uid-{self.sandbox_id}"

    async def usage_over_limit(self) -> str | None:
        return None

    async def stop(self, end: SandboxEnd) -> None:
        assert self.cluster is not None
        self.cluster.pods.pop(self.sandbox_id, None)
        if not self.ended.done():
            self.ended.set_result(end)


@dataclass
class FakeCluster:
    """What several schedulers share."""

    pods: dict[str, FakePod] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)
    peak: int = 0
    refuse: SandboxFailed | None = None
    steal: int = 0
    """So many claims are lost to another scheduler."""


class FakeWarmRuntime:
    """`WarmRuntime` over a FakeCluster; `latency_s` is what a call to the API server takes."""

    name = "fake-pod"
    networks = frozenset({NetworkClass.NO_NETWORK, NetworkClass.GATEWAY_ONLY})
    default_network = NetworkClass.GATEWAY_ONLY
    outlives_scheduler = True

    def __init__(self, cluster: FakeCluster, latency_s: float = 0.0, starts_ready: bool = True) -> None:
        self.cluster = cluster
        self._latency_s = latency_s
        self._starts_ready = starts_ready

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        lost = [pod for pod in self.cluster.pods.values() if pod.tag and pod.sandbox_id not in keep]
        if not dry_run:
            for pod in lost:
                await pod.stop(SandboxEnd(EndReason.LOST))
        return [Removed("Pod", pod.sandbox_id, "on no record") for pod in lost]

    async def prepare(self, task: Any, bundle: Any) -> PreparedImage:
        return PreparedImage(Image(digest=f"sha256:{task.digest}", reference=task.digest), False, 0.0)

    def _add(self, sandbox_id: str, template: Template, tag: ClaimTag | None) -> FakePod:
        if self.cluster.refuse is not None:
            raise self.cluster.refuse
        pod = FakePod(sandbox_id, template, tag, self._starts_ready or tag is not None, cluster=self.cluster)
        self.cluster.pods[sandbox_id] = pod
        self.cluster.peak = max(self.cluster.peak, len(self.cluster.pods))
        return pod

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> FakePod:
        await asyncio.sleep(self._latency_s)
        return self._add(sandbox_id, template, tag)

    async def find(self, sandbox_id: str, instance: str) -> FakePod | SandboxEnd:
        return self.cluster.pods.get(sandbox_id) or SandboxEnd(EndReason.LOST, "no such pod")

    @property
    def population(self) -> int:
        return len(self.cluster.pods)

    def warm(self) -> Sequence[WarmSandbox]:
        return [
            WarmSandbox(pod.sandbox_id, pod.template.key, pod.ready)
            for pod in self.cluster.pods.values()
            if pod.tag is None
        ]

    def ready(self, template_key: str) -> list[str]:
        return [one.sandbox_id for one in self.warm() if one.template_key == template_key and one.ready]

    async def start_warm(self, sandbox_id: str, template: Template) -> None:
        await asyncio.sleep(self._latency_s)
        self._add(sandbox_id, template, None)

    async def claim(self, sandbox_id: str, template: Template, tag: ClaimTag) -> FakePod | None:
        before = self.cluster.pods.get(sandbox_id)
        await asyncio.sleep(self._latency_s)
        pod = self.cluster.pods.get(sandbox_id)
        if pod is None or pod is not before or pod.tag is not None:
            return None
        if self.cluster.steal > 0:
            self.cluster.steal -= 1
            pod.tag = ClaimTag("thief", "", "", "", 1.0)
            return None
        pod.tag = tag
        self.cluster.claims.append(sandbox_id)
        return pod

    async def discard(self, sandbox_id: str) -> None:
        pod = self.cluster.pods.get(sandbox_id)
        if pod is not None and pod.tag is None:
            await pod.stop(SandboxEnd(EndReason.DELETED))
