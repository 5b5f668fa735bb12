"""Values of the gateway: policies, sessions, turns, what an engine is asked and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class PolicyKind(StrEnum):
    """How a version's weights are delivered."""

    LORA = "lora"
    FULL = "full"


class PolicyState(StrEnum):
    """Life of a policy version."""

    PUBLISHING = "publishing"
    SERVING = "serving"
    UNLOADED = "unloaded"
    FAILED = "failed"


class EngineState(StrEnum):
    """Life of an engine."""

    STARTING = "starting"
    READY = "ready"
    FENCED = "fenced"
    STOPPED = "stopped"


class TurnStatus(StrEnum):
    """Whether a turn is a trace that can be used."""

    OK = "ok"
    ERROR = "error"
    CAPTURE_INCOMPLETE = "capture_incomplete"


class FinishReason(StrEnum):
    """Why sampling ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


class Reason(StrEnum):
    """Machine-readable cause of a refused or failed model call; in details["reason"] of the error."""

    INVALID_TOKEN = "invalid_token"
    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    SESSION_TOKEN_LIMIT = "session_token_limit"
    SESSION_FENCED = "session_fenced"
    QUEUE_FULL = "queue_full"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    CAPTURE_FAILED = "capture_failed"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. top_k 0: off. max_tokens 0: up to the context. seed None: the engine draws."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a policy is made of."""

    base_digest: str
    tokenizer_digest: str
    template_digest: str


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of an alias; `uri` is a folder."""

    alias: str
    version: int
    kind: PolicyKind
    state: PolicyState
    uri: str
    digest: str
    incarnation: int
    published_at_ms: int
    identity: ModelIdentity
    detail: str = ""

    @property
    def served_name(self) -> str:
        """The engine's model name. Never reused: prefix caches key on it."""
        return served_name(self.alias, self.version)


def served_name(alias: str, version: int) -> str:
    """`<alias>-v<N>`."""
    return f"{alias}-v{version}"


@dataclass(frozen=True, slots=True)
class ServedBase:
    """What an engine is started for: a served name, the folder of the weights, and that folder's tree digest."""

    name: str
    folder: str
    digest: str

    def is_adapter(self, name: str) -> bool:
        """Whether a served name is a later version of the same alias."""
        prefix = self.name.removesuffix("0")
        return name != self.name and name.startswith(prefix) and name.removeprefix(prefix).isdigit()


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """Where an alias points. current_version None: nothing has been served yet."""

    alias: str
    run_id: str
    current_version: int | None
    incarnation: int
    retired: bool


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """An open session as stored; the token itself is never kept."""

    session_id: str
    token_hash: bytes
    run_id: str
    attempt_id: str
    lease_epoch: int
    alias: str
    version: int
    sampling: Sampling
    max_session_tokens: int
    opened_at_ms: int
    expires_at_ms: int
    closed_at_ms: int | None = None
    totals: SessionTotals | None = None


@dataclass(slots=True)
class SessionTotals:
    """What a session used. queued_s: seconds its calls waited in our queue."""

    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queued_s: float = 0.0
    capture_complete: bool = True


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens from first_token on were sampled by this version."""

    first_token: int
    version: int


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Ids in. stop_ids end sampling and are part of the answer."""

    model: str
    prompt_ids: list[int]
    sampling: Sampling
    stop_ids: tuple[int, ...]


@dataclass(slots=True)
class Generated:
    """Ids out. spans: (first token, engine's version label). logprobs: natural log, as the engine gave them."""

    model: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    spans: list[tuple[int, str]] = field(default_factory=list)
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One captured model call. Times are milliseconds since the epoch."""

    attempt_id: str
    lease_epoch: int
    turn: int
    parent_turn: int
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    versions: list[VersionSpan]
    finish_reason: FinishReason
    sampling: Sampling
    identity: ModelIdentity
    engine: str
    dialect: str
    request: bytes
    response: bytes
    tools: bytes
    received_at_ms: int
    first_token_at_ms: int
    done_at_ms: int
    status: TurnStatus
    trainable: bool
    untrainable_reason: str
    served_name: str


Message = Mapping[str, object]
