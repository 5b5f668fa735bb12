"""The catalog's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    """What is known about a task's content. Each state points to its evidence."""

    NEEDS_PROBE = "needs_probe"
    """No probe has come to an end."""
    EVALUABLE = "evaluable"
    """The oracle is rewarded every time, doing nothing is not."""
    TRAINABLE = "trainable"
    """Evaluable, and a reference group's reward varies with a token-exact trace."""
    REJECTED = "rejected"
    """The oracle is never rewarded, or doing nothing is."""
    FLAKY = "flaky"
    """The same content in the same image was rewarded differently."""


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"
    """The task can be imported; something is ignored or suspicious."""
    ERROR = "error"
    """The task cannot be used: nothing is stored."""


class EvidenceKind(StrEnum):
    """What was run."""

    ORACLE = "oracle"
    NOP = "nop"
    REFERENCE = "reference"


@dataclass(frozen=True)
class Finding:
    """One lint result. `where` is a path inside the task, with ":line" where there is one."""

    severity: Severity
    rule: str
    where: str
    message: str


@dataclass(frozen=True)
class Limits:
    """What a task may use; sizes in MiB, times in seconds."""

    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    agent_timeout_s: float = 600.0
    verifier_timeout_s: float = 600.0
    build_timeout_s: float = 600.0


@dataclass(frozen=True)
class Evidence:
    """One probe or reference group: rewards of the runs that had one, failures of those that had none."""

    kind: EvidenceKind
    rewards: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()
    image_digest: str = ""
    recorded_at_ms: int = 0
    detail: str = ""
    token_exact: bool = False


@dataclass(frozen=True)
class TaskContent:
    """What a task is: read from its files, the same for every copy of them."""

    digest: str
    name: str
    instruction: str
    environment_digest: str
    tests_digest: str
    limits: Limits
    metadata: Mapping[str, Any]
    workdir: str
    agent_user: str
    verifier_user: str
    has_solution: bool
    solution_env: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    # Rows stored before these were read hold none of them.
    docker_image: str = ""
    network_mode: str = ""
    """"public", "allowlist" or "no-network"; empty: the task does not say."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names and CIDRs; only with "allowlist"."""


@dataclass(frozen=True)
class Task:
    """A task as the catalog knows it."""

    content: TaskContent
    state: TaskState = TaskState.NEEDS_PROBE
    state_reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    imported_at_ms: int = 0
    source: str = ""

    @property
    def digest(self) -> str:
        """The task's identity."""
        return self.content.digest


@dataclass(frozen=True)
class Dataset:
    """A frozen set of splits; task digests are sorted."""

    name: str
    digest: str
    splits: Mapping[str, tuple[str, ...]]
    frozen_at_ms: int = 0


@dataclass(frozen=True)
class Page:
    """Some tasks in order of name and digest; next_after is empty at the end."""

    tasks: tuple[Task, ...]
    next_after: tuple[str, str] | None = None


@dataclass(frozen=True)
class ProbeResult:
    """What is known of a task after its probe."""

    digest: str
    state: TaskState
    state_reason: str
    evidence: tuple[Evidence, ...] = field(default_factory=tuple)
    cached: bool = False
