"""Pod runtimes on the real cluster, several to one namespace as replicas are, without network policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from real_cluster import AGENT_IMAGE, BUSYBOX_IMAGE, Ground, ground

from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.clock import SystemClock
from longshore_sandbox_scheduler.api.agent_tokens import JwtAgentTokens
from longshore_sandbox_scheduler.domain.model import Limits, NetworkClass, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, Removed, RunningSandbox
from longshore_sandbox_scheduler.runtimes.pod.agent_prober import HealthProber
from longshore_sandbox_scheduler.runtimes.pod.exec_tunnel import ExecTunnels
from longshore_sandbox_scheduler.runtimes.pod.images import ImageOptions, PodImages, image_of
from longshore_sandbox_scheduler.runtimes.pod.layer_sender import LayerSender
from longshore_sandbox_scheduler.runtimes.pod.pod_runtime import PodRuntime, PodRuntimeOptions
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import AGENT, PodOptions
from longshore_sandbox_scheduler.runtimes.pod.reasons import MAIN, Graces

LIMITS = Limits(cpus=1, memory_mb=128, storage_mb=64, max_processes=100, max_file_mb=512)
TEMPLATE = Template(image_of(BUSYBOX_IMAGE, workdir="/work"), LIMITS)
GRACES = Graces(image_pull_s=8.0, unschedulable_s=3.0)


class OpenNetwork:
    """`Networks` where nothing is held back: what is tested here is not the network."""

    supported = frozenset(NetworkClass)
    canaries: tuple[str, ...] = ()

    async def start(self) -> None:
        return

    async def ensure(self, network: Any) -> str:
        return "open"

    def proxy_env(self, network: Any) -> dict[str, str]:
        return {}

    def nameservers(self, network: Any) -> tuple[str, ...]:
        return ()

    async def sweep(self, used: Collection[str], dry_run: bool = False) -> list[Removed]:
        return []


def tag(attempt: str = "a", deadline_s: float = 3600.0) -> ClaimTag:
    return ClaimTag("run", attempt, "sha256:task", f"key-{attempt}", deadline_s)


@dataclass
class Replicas:
    """Schedulers' runtimes over one namespace."""

    ground: Ground
    channels: AgentChannels
    clock: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.tokens = JwtAgentTokens("s" * 32, lambda: self.clock.now_ms() / 1000)

    def mint(self, sandbox_id: str, instance: str) -> str:
        return self.tokens.mint(sandbox_id, instance, self.clock.now_ms() + 3_600_000)

    @asynccontextmanager
    async def runtime(
        self, *, start_grace_s: float = 180.0, through_api: bool = False, **pods: Any
    ) -> AsyncIterator[PodRuntime]:
        """One more replica, started; its end leaves the sandboxes alone."""
        api = self.ground.api
        ways = ExecTunnels(api, self.ground.namespace, MAIN, (AGENT, "connect")) if through_api else None
        made = PodRuntime(
            api,
            self.ground.place,
            OpenNetwork(),
            PodImages(ImageOptions()),
            HealthProber(self.channels, self.mint),
            LayerSender(AgentChannels(), self.mint, 64),
            self.clock,
            PodOptions(
                **{
                    "agent_image": AGENT_IMAGE,
                    "agent_public_key": self.tokens.public_key,
                    "cpu_request": 0.01,
                    "memory_request": 0.1,
                    **pods,
                }
            ),
            PodRuntimeOptions(start_timeout_s=60.0, start_grace_s=start_grace_s, graces=GRACES),
            ways=ways,
        )
        await made.start()
        try:
            yield made
        finally:
            await made.stop()

    def agent(self, sandbox: RunningSandbox) -> AgentClient:
        """Its agent; `busybox` is the only program there."""
        access: Any = sandbox.access
        return self.channels.client(access.address, self.mint(sandbox.sandbox_id, sandbox.instance))  # type: ignore[attr-defined]

    async def pods(self, selector: str = "") -> dict[str, Any]:
        """All pods that the API server has and that are not on their way out."""
        found = await self.ground.api.list("pods", self.ground.namespace, selector)
        return {pod["metadata"]["name"]: pod for pod in found.items if "deletionTimestamp" not in pod["metadata"]}


@asynccontextmanager
async def replicas() -> AsyncIterator[Replicas]:
    """In a namespace of their own."""
    channels = AgentChannels()
    async with ground() as made:
        try:
            yield Replicas(made, channels)
        finally:
            await channels.close()


async def until(condition: Callable[[], Any], what: str, within_s: float = 30.0) -> Any:
    """The first true value; fails naming what was waited for."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.02)
    return found
