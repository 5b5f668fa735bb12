"""Puts the docker runtime together from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshore_common.agent_client import AgentChannels
from longshore_common.clock import Clock
from longshore_sandbox_scheduler.runtimes.docker.agent_volume import AgentVolume, read_agent
from longshore_sandbox_scheduler.runtimes.docker.container_spec import ContainerOptions
from longshore_sandbox_scheduler.runtimes.docker.docker_runtime import DockerRuntime, DockerRuntimeOptions
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineOptions
from longshore_sandbox_scheduler.runtimes.docker.exec_carrier import ExecCarrier
from longshore_sandbox_scheduler.runtimes.docker.images import DockerImageOptions, DockerImages
from longshore_sandbox_scheduler.runtimes.pod.agent_prober import HealthProber
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import AGENT
from longshore_sandbox_scheduler.runtimes.tunnels import Tunnels


@dataclass(frozen=True)
class DockerSettings:
    """Sandboxes on a Docker-compatible engine."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    agent_binary: Path = Path("build/agent/longshore-agent")
    """The in-sandbox agent (tools/build_agent.sh), for the engine's own architecture."""
    public_network: str = ""
    """Network of the engine that sandboxes of class `public` join; empty: the class is not offered. The engine's own
    `bridge` lets them reach private addresses, too: the operator's packet filter must keep them out."""
    container_runtime: str = ""
    """OCI runtime of sandboxes, e.g. runsc; empty: the engine's default."""
    storage_quota: bool = False
    """True: the engine's storage driver holds containers to a size (overlay2 on xfs with pquota, zfs, btrfs)."""
    host: dict[str, Any] = field(default_factory=dict)
    """More fields of every container's HostConfig, e.g. LogConfig, SecurityOpt, CgroupParent."""
    images: DockerImageOptions = field(default_factory=DockerImageOptions)
    start: DockerRuntimeOptions = field(default_factory=DockerRuntimeOptions)


@dataclass(frozen=True)
class DockerParts:
    """What belongs to one scheduler on an engine."""

    api: EngineApi
    runtime: DockerRuntime


async def assemble(
    settings: DockerSettings,
    clock: Clock,
    public_key: str,
    mint: Callable[[str, str, int], str],
    channels: AgentChannels,
    owner: str,
    data_dir: Path,
) -> DockerParts:
    """mint: token of a sandbox, an instance and an end in ms. owner: marks this scheduler's objects on the engine.

    Raises:
        InvalidSpec: the agent's binary or the engine's address cannot be used.
    """
    binary = read_agent(settings.agent_binary)
    api = await EngineApi.open(settings.engine)
    timeout_ms = int(1000 * settings.start.start_timeout_s)
    prober = HealthProber(channels, lambda sandbox, instance: mint(sandbox, instance, clock.now_ms() + timeout_ms))
    containers = ContainerOptions(
        agent_public_key=public_key,
        owner=owner,
        public_network=settings.public_network,
        runtime=settings.container_runtime,
        storage_quota=settings.storage_quota,
        host=settings.host,
    )
    runtime = DockerRuntime(
        api,
        DockerImages(api, settings.images, owner, data_dir / "builds"),
        AgentVolume(api, binary, owner),
        Tunnels(ExecCarrier(api, (AGENT, "connect"))),
        prober,
        clock,
        containers,
        settings.start,
        data_dir,
    )
    return DockerParts(api, runtime)
