"""The container of a template, as the engine takes it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from longshore_sandbox_scheduler.domain.model import Limits, NetworkClass, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag
from longshore_sandbox_scheduler.runtimes.pod.placement import COMPONENT, MANAGED_BY, MANAGER
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import (
    AGENT,
    AGENT_FOLDER,
    AGENT_PORT,
    ATTEMPT,
    KEPT_CAPABILITIES,
    KEY,
    RUN,
    TASK,
    TEMPLATE,
)

OWNER = "longshore.dev/owner"
INSTANCE = "longshore.dev/instance"
SANDBOX, AGENT_VOLUME = "sandbox", "agent"
ENGINE_ENV = ("TERM", "container")
"""Variables that engines set in every container by themselves."""
_PROCESSES_OF_AGENT = 256
"""Threads of the agent and of its supervisors count in the cgroup, too; its watchdog holds the limit itself."""


@dataclass(frozen=True)
class ContainerOptions:
    """How containers are made."""

    agent_public_key: str
    owner: str
    """Marks what belongs to this scheduler; two of them on one engine never touch each other's."""
    public_network: str = ""
    """The engine's network for class `public`; empty: that class is not offered."""
    runtime: str = ""
    """OCI runtime of sandboxes, e.g. runsc; empty: the engine's default."""
    storage_quota: bool = False
    """The engine's storage driver can hold containers to a size."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """More fields of every container's HostConfig; ours win."""


def labels(owner: str, component: str) -> dict[str, str]:
    """Of everything that is ours on an engine."""
    return {MANAGED_BY: MANAGER, COMPONENT: component, OWNER: owner}


def container_of(
    template: Template,
    tag: ClaimTag,
    sandbox_id: str,
    instance: str,
    agent_volume: str,
    image_env: Collection[str],
    options: ContainerOptions,
) -> dict[str, Any]:
    """image_env: names of the variables that the image itself sets."""
    image, limits = template.image, template.limits
    hidden = [name for name in ENGINE_ENV if name not in image_env]
    env = {
        **image.env,
        "LONGSHORE_AGENT_PUBLIC_KEY": options.agent_public_key,
        "LONGSHORE_AGENT_SANDBOX_ID": sandbox_id,
        "LONGSHORE_AGENT_INSTANCE": instance,
        # Only `connect` calls it, from inside: other containers of the same network need not even try.
        "LONGSHORE_AGENT_LISTEN": f"127.0.0.1:{AGENT_PORT}",
        "LONGSHORE_AGENT_RUNTIME": "docker",
        "LONGSHORE_AGENT_USER": image.user,
        "LONGSHORE_AGENT_WORKDIR": image.workdir,
        "LONGSHORE_AGENT_HIDDEN_ENV": ",".join(hidden),
        "LONGSHORE_AGENT_MAX_PROCESSES": str(limits.max_processes),
        "LONGSHORE_AGENT_MAX_FILE_MB": str(limits.max_file_mb),
    }
    marks = {
        **labels(options.owner, SANDBOX),
        INSTANCE: instance,
        TEMPLATE: template.key,
        RUN: tag.run_id,
        ATTEMPT: tag.attempt_id,
        TASK: tag.task_digest,
        KEY: tag.idempotency_key,
    }
    return {
        "Image": image.reference,
        "Hostname": "sandbox",
        "User": "0:0",
        "Entrypoint": [AGENT],
        "Cmd": ["serve"],
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": marks,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(limits, template.network.kind, agent_volume, options),
    }


def _host_config(limits: Limits, network: NetworkClass, agent_volume: str, options: ContainerOptions) -> dict[str, Any]:
    memory = limits.memory_mb * 1024 * 1024
    config = {
        **options.host,
        "NetworkMode": options.public_network if network is NetworkClass.PUBLIC else "none",
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": max(1, round(limits.cpus * 1e9)),
        "PidsLimit": 2 * limits.max_processes + _PROCESSES_OF_AGENT,
        "CapDrop": ["ALL"],
        "CapAdd": list(KEPT_CAPABILITIES),
        "Privileged": False,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        # The task's root must not put another program in the agent's place: read-only, and no right to mount.
        "Mounts": [agent_mount(agent_volume, read_only=True)],
    }
    if options.runtime:
        config["Runtime"] = options.runtime
    if options.storage_quota:
        config["StorageOpt"] = {"size": f"{limits.storage_mb}M"}
    return config


def agent_mount(volume: str, *, read_only: bool) -> dict[str, Any]:
    """The volume that holds the agent, where the agent lies in every container."""
    return {
        "Type": "volume",
        "Source": volume,
        "Target": AGENT_FOLDER,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }
