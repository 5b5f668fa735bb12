"""What the controller remembers and hears about runs, as plain values. Times are milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from longshore_controller.domain.vocabulary import (
    EventKind,
    GroupState,
    OutcomeKind,
    Purpose,
    RunState,
    StepPhase,
)


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    run_id: str
    name: str
    state: RunState
    state_reason: str
    plan_json: str
    plan_digest: str
    seed: int
    alias: str
    step: int
    """Last committed trainer step."""
    total_steps: int
    policy_version: int
    incarnation: int
    base_digest: str
    """Digest of version 0; empty until it exists."""
    created_at_ms: int
    updated_at_ms: int
    finished_at_ms: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTask:
    """A task of a run, as leases need it."""

    digest: str
    split: str
    name: str
    instruction: str
    skill: str
    agent_timeout_s: float


@dataclass(frozen=True)
class EventRecord:
    """One thing that happened in a run."""

    sequence: int
    run_id: str
    at_ms: int
    kind: EventKind
    message: str
    data: dict[str, object]


@dataclass(frozen=True)
class StepRecord:
    """What a trainer reported about one step."""

    run_id: str
    phase: StepPhase
    step: int
    incarnation: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    total_steps: int
    at_ms: int


@dataclass(frozen=True)
class StepTimes:
    """Rollout side of a step, over the groups that were planned for it."""

    rollout_s: float
    """Wall time from the first lease to the last seal."""
    verify_s: float
    """Sum of verifier seconds over its attempts; they overlap, so it can exceed the wall time."""


@dataclass(frozen=True)
class WorkTotals:
    """Attempts' costs, summed."""

    attempts: int
    prompt_tokens: int
    completion_tokens: int
    agent_s: float
    verifier_s: float


@dataclass(frozen=True)
class SealedAttempt:
    """An attempt that the trajectory store sealed or discarded."""

    sequence: int
    attempt_id: str
    group_id: str
    group_state: GroupState
    purpose: Purpose
    panel: str
    outcome: OutcomeKind
    turns: int
    prompt_tokens: int
    completion_tokens: int
    agent_s: float
    verifier_s: float
    sealed_at_ms: int


@dataclass(frozen=True)
class GroupInfo:
    """A group as the trajectory store knows it."""

    group_id: str
    state: GroupState
    step: int
    consumed_step: int
    """0: not consumed."""


@dataclass(frozen=True)
class AttemptCounts:
    """planned + refilled = scored + failed + discarded + open; retried is counted beside."""

    planned: int = 0
    refilled: int = 0
    scored: int = 0
    failed: int = 0
    discarded: int = 0
    open: int = 0
    retried: int = 0
    by_termination: dict[str, int] = field(default_factory=dict)
    by_failure: dict[str, int] = field(default_factory=dict)
    by_discard: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyInfo:
    """A policy version as the gateway knows it."""

    version: int
    kind: str
    state: str
    uri: str
    digest: str
    served_name: str
    published_at_ms: int
    current: bool
