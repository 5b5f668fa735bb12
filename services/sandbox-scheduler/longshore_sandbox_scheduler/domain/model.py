"""Sandboxes, limits and what is known of a task's image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

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


@dataclass(frozen=True)
class TaskEnvironment:
    """What the scheduler needs of a task. `environment_digest` names the content of its environment folder."""

    digest: str
    environment_digest: str
    limits: Limits
    build_timeout_s: float
    workdir: str = ""


@dataclass(frozen=True)
class Image:
    """A root tree that can be mounted: folders from lowest to highest, and what its Dockerfile set."""

    digest: str
    layers: tuple[str, ...]
    workdir: str = "/"
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


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

    def ready(self, image_digest: str, enforcement: Mapping[str, str], expires_at_ms: int) -> Sandbox:
        """The sandbox once its init runs; its lease counts from there."""
        return replace(
            self,
            state=SandboxState.READY,
            image_digest=image_digest,
            enforcement=dict(enforcement),
            expires_at_ms=expires_at_ms,
        )

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


@dataclass(frozen=True)
class Grant:
    """A claimed sandbox with the way in."""

    sandbox: Sandbox
    agent_address: str
    agent_token: str
