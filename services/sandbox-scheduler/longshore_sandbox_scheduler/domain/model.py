"""Sandboxes, limits and what is known of a task's image."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec

SandboxId = str


class SandboxState(StrEnum):
    """Life of a sandbox; it never goes back."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a sandbox ended; survives deletion."""

    NONE = "none"
    DELETED = "deleted"
    EXPIRED = "expired"
    OOM = "oom"
    IMAGE_PULL = "image_pull"
    EVICTED = "evicted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NODE_LOST = "node_lost"
    QUOTA = "quota"
    UNSCHEDULABLE = "unschedulable"
    START_FAILED = "start_failed"
    LOST = "lost"


class Enforcement(StrEnum):
    """What makes a limit hold."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    RLIMIT_UID = "rlimit-uid"
    ADVISORY = "advisory"


@dataclass(frozen=True)
class Limits:
    """Hard limits of one sandbox; memory, storage and file in MiB. 0 means "not said"."""

    cpus: float = 0.0
    memory_mb: int = 0
    storage_mb: int = 0
    max_processes: int = 0
    max_file_mb: int = 0

    def or_default(self, default: Limits) -> Limits:
        """Fills what is not said."""
        return Limits(
            cpus=self.cpus or default.cpus,
            memory_mb=self.memory_mb or default.memory_mb,
            storage_mb=self.storage_mb or default.storage_mb,
            max_processes=self.max_processes or default.max_processes,
            max_file_mb=self.max_file_mb or default.max_file_mb,
        )

    def lowered_by(self, wish: Limits) -> Limits:
        """The smaller of both for each limit that `wish` names.

        Raises:
            InvalidSpec: a wish is negative.
        """
        return Limits(
            cpus=_lower("limits.cpus", self.cpus, wish.cpus),
            memory_mb=int(_lower("limits.memory_mb", self.memory_mb, wish.memory_mb)),
            storage_mb=int(_lower("limits.storage_mb", self.storage_mb, wish.storage_mb)),
            max_processes=int(_lower("limits.max_processes", self.max_processes, wish.max_processes)),
            max_file_mb=int(_lower("limits.max_file_mb", self.max_file_mb, wish.max_file_mb)),
        )


def _lower(name: str, own: float, wish: float) -> float:
    if wish < 0:
        raise InvalidSpec(f"{name} is {wish}; it must be positive, or 0 for the task's own", field=name)
    return min(own, wish) if wish else own


class NetworkClass(StrEnum):
    """What a sandbox may reach."""

    NO_NETWORK = "no-network"
    GATEWAY_ONLY = "gateway-only"
    """The gateway's data port by IP; no DNS."""
    ALLOWLIST = "allowlist"
    """Named CIDRs, and named hosts through the egress proxy."""
    PUBLIC = "public"
    """The internet; not private, link-local and metadata addresses, nodes or the API server."""


_HOST = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Network:
    """A network class with what its allowlist names, in sorted order. Raises InvalidSpec for what cannot be meant."""

    kind: NetworkClass = NetworkClass.NO_NETWORK
    cidrs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.cidrs or self.hosts) and self.kind is not NetworkClass.ALLOWLIST:
            raise InvalidSpec(f"cidrs and hosts need network class allowlist, not {self.kind}", field="network")
        if self.kind is NetworkClass.ALLOWLIST and not (self.cidrs or self.hosts):
            raise InvalidSpec("an allowlist names at least one CIDR or host; use no-network for none", field="network")
        object.__setattr__(self, "cidrs", tuple(sorted({_cidr(text) for text in self.cidrs})))
        object.__setattr__(self, "hosts", tuple(sorted({_host(text) for text in self.hosts})))


def _cidr(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise InvalidSpec(f"network.cidrs: {text!r} is no CIDR: {error}", field="network.cidrs") from error


def _host(text: str) -> str:
    name = text.lower().rstrip(".")
    if not _HOST.fullmatch(name):
        raise InvalidSpec(f"network.hosts: {text!r} is no host name (a.example or *.example)", field="network.hosts")
    return name


@dataclass(frozen=True)
class TaskEnvironment:
    """What the scheduler needs of a task. `environment_digest` names the content of its environment folder."""

    digest: str
    environment_digest: str
    limits: Limits
    build_timeout_s: float
    workdir: str = ""
    docker_image: str = ""
    """[environment].docker_image of task.toml."""
    network: Network | None = None
    """[environment].network_mode; None: not said."""


@dataclass(frozen=True)
class Sidecar:
    """One more container of a compose task; `spec` is what the compose file gives of a Kubernetes container."""

    name: str
    reference: str
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """What a sandbox is made of: a root tree of folders, lowest first, or an image that the cluster can pull."""

    digest: str
    layers: tuple[str, ...] = ()
    workdir: str = "/"
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    """Name of an image for a container runtime; by digest where it has one."""
    layer: str = ""
    """Digest of a tar of files that are put over `reference` before a claim is answered; empty: there are none."""
    base_digest: str = ""
    """With a layer: digest of what it is put over, while `digest` is of both."""
    sidecars: tuple[Sidecar, ...] = ()


@dataclass(frozen=True)
class Template:
    """All that makes two sandboxes interchangeable before their claim."""

    image: Image
    limits: Limits
    network: Network = Network()

    @property
    def key(self) -> str:
        """Short name, usable as a Kubernetes label. An image's layer is not in it: that comes with the claim."""
        image, limits, network = self.image, self.limits, self.network
        sidecars = [[one.name, one.reference, dict(one.spec)] for one in image.sidecars]
        parts = [
            [image.base_digest or image.digest, image.reference, image.workdir, image.user, dict(image.env)],
            [limits.cpus, limits.memory_mb, limits.storage_mb, limits.max_processes, limits.max_file_mb],
            [network.kind.value, list(network.cidrs), list(network.hosts)],
            sidecars,
        ]
        return digest(parts).removeprefix("sha256:")[:20]


class LaunchType(StrEnum):
    """Where a claimed sandbox came from."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True)
class Sandbox:
    """One sandbox as recorded; times in milliseconds since the epoch."""

    sandbox_id: SandboxId
    state: SandboxState
    task_digest: str
    run_id: str
    attempt_id: str
    created_at_ms: int
    expires_at_ms: int
    limits: Limits
    runtime: str
    owner: str
    idempotency_key: str = ""
    image_digest: str = ""
    end_reason: EndReason = EndReason.NONE
    end_detail: str = ""
    ended_at_ms: int = 0
    enforcement: Mapping[str, str] = field(default_factory=dict)
    network: NetworkClass = NetworkClass.NO_NETWORK
    launch: LaunchType = LaunchType.COLD
    instance: str = ""
    """Which incarnation it is: the pod's UID; empty where the runtime has none."""
    node: str = ""
    deadline_at_ms: int = 0
    """When it ends at the latest, whatever its lease says; its tokens end then too."""

    def ended(self, reason: EndReason, detail: str, now_ms: int) -> Sandbox:
        """The sandbox after its end; the first reason stays."""
        if self.state is SandboxState.ENDED:
            return self
        return replace(self, state=SandboxState.ENDED, end_reason=reason, end_detail=detail[:2000], ended_at_ms=now_ms)


@dataclass(frozen=True)
class Claim:
    """What a caller asks for."""

    task_digest: str
    limits: Limits = Limits()
    run_id: str = ""
    attempt_id: str = ""
    ttl_s: float = 0.0
    idempotency_key: str = ""
    network: Network | None = None
    """None: the task's own, else the runtime's default."""
    priority: int = 0
    """Higher goes first among those who wait."""


@dataclass(frozen=True)
class Demand:
    """Sandboxes of one kind that a run will claim soon."""

    task_digest: str
    count: int
    limits: Limits = Limits()
    network: Network | None = None


@dataclass(frozen=True)
class Grant:
    """A claimed sandbox with the way in."""

    sandbox: Sandbox
    agent_address: str
    agent_token: str
