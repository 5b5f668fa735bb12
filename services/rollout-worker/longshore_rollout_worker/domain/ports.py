"""What the worker needs from other services. Implemented in clients/, faked in tests. Methods raise LongshoreError."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from longshore_common.sandbox_exec import SandboxAgent
from longshore_rollout_worker.domain.vocabulary import Failure, Termination


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; seed None: the engine draws it."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int | None


@dataclass(frozen=True, order=True)
class LeaseKey:
    """One grant of one attempt."""

    attempt_id: str
    epoch: int


@dataclass(frozen=True)
class Lease:
    """All a worker needs to run one attempt; times in seconds."""

    key: LeaseKey
    run_id: str
    task_digest: str
    instruction: str
    harness_name: str
    harness_config_json: str
    policy_alias: str
    pinned_version: int | None
    sampling: Sampling
    max_turns: int
    max_tokens: int
    agent_timeout_s: float
    ttl_s: float
    trains: bool
    verifier_digest: str
    sandbox_limits: Mapping[str, float | int] = field(default_factory=dict)
    """Lower limits than the task's own, by the contracts' keys."""
    regrade: bool = True


@dataclass(frozen=True)
class ClaimedSandbox:
    """A granted sandbox. limits are the keys of the contracts' limits digest."""

    sandbox_id: str
    image_digest: str
    limits: Mapping[str, float | int]
    agent: SandboxAgent
    agent_address: str
    agent_token: str


@dataclass(frozen=True)
class SandboxEnd:
    """How a sandbox ended, in the scheduler's words; reason "" while it lives."""

    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Session:
    """A gateway session and what the policy is made of."""

    session_id: str
    token: str
    base_url: str
    model: str
    start_version: int
    base_digest: str
    tokenizer_digest: str
    template_digest: str


@dataclass(frozen=True)
class SessionUse:
    """What a session used, said at its end."""

    turns: int
    capture_complete: bool


@dataclass(frozen=True)
class TaskInfo:
    """Where and as whom an agent works; "" is the image's folder and root."""

    workdir: str
    user: str


@dataclass(frozen=True)
class Identity:
    """What an attempt was made of: the fields of its digest."""

    task_digest: str
    harness_name: str
    harness_version: str
    harness_config_digest: str
    base_digest: str
    tokenizer_digest: str
    template_digest: str
    sampling: Sampling
    policy_alias: str
    image_digest: str
    limits_digest: str
    verifier_digest: str


@dataclass(frozen=True)
class Graded:
    """A verifier's answer with a reward. record is the full reward, passed on as it came."""

    reward: float
    record: Any
    agent_broke_verifier: bool
    seconds: float


@dataclass(frozen=True)
class NotGraded:
    """A verifier's answer without one."""

    failure: Failure
    evidence: str
    seconds: float


@dataclass(frozen=True)
class Seal:
    """A scored attempt as it is fixed in the trajectory store; agent and verifier time in seconds."""

    key: LeaseKey
    reward: float
    record: Any
    termination: Termination
    identity: Identity
    start_version: int
    agent_s: float
    verifier_s: float
    sandbox_id: str


@dataclass(frozen=True)
class HeartbeatAnswer:
    """Leases that are not this worker's any more, and those that the run wants ended."""

    lost: tuple[LeaseKey, ...]
    cancelled: tuple[LeaseKey, ...]


class Controller(Protocol):
    """Leases."""

    async def lease(self, worker_id: str, most: int, wait_s: float) -> Sequence[Lease]: ...
    async def heartbeat(self, worker_id: str, keys: Sequence[LeaseKey]) -> HeartbeatAnswer: ...
    async def complete(self, worker_id: str, key: LeaseKey, retry: tuple[Failure, str] | None) -> bool:
        """Frees the lease; whether the attempt will be leased again."""
        ...


class Scheduler(Protocol):
    """Sandboxes."""

    async def claim(self, lease: Lease, ttl_s: float) -> ClaimedSandbox: ...
    async def renew(self, sandbox_id: str, ttl_s: float) -> None: ...
    async def look_up(self, sandbox_id: str) -> SandboxEnd: ...
    async def delete(self, sandbox_id: str) -> None: ...


class Gateway(Protocol):
    """Sessions."""

    async def open(self, lease: Lease, ttl_s: float) -> Session: ...
    async def close(self, session_id: str) -> SessionUse: ...


class Catalog(Protocol):
    """Tasks."""

    async def task(self, digest: str) -> TaskInfo: ...


class Verifier(Protocol):
    """Rewards."""

    async def verify(self, lease: Lease, sandbox: ClaimedSandbox, regrade: bool) -> Graded | NotGraded: ...


class Trajectory(Protocol):
    """Outcomes."""

    async def seal(self, seal: Seal) -> None: ...


@dataclass(frozen=True)
class ModelAnswer:
    """One HTTP answer of the gateway; status 0: the connection broke, body then says why."""

    status: int
    body: Mapping[str, Any]
    queued_ms: float = 0.0
    retry_after_s: float | None = None


class ModelTransport(Protocol):
    """One call of the gateway's data port."""

    async def send(self, session: Session, request: Mapping[str, Any], resend: int) -> ModelAnswer:
        """POST chat/completions; resend counts earlier sends of the same request. Never raises for HTTP or network."""
        ...
