"""Closed sets of names, as the contracts spell them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Life of a run; `domain.run_state` says which moves are allowed."""

    PENDING = "pending"
    WARMING = "warming"
    SERVING = "serving"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Purpose(StrEnum):
    """What a group is for."""

    TRAIN = "train"
    EVAL = "eval"


class SplitName(StrEnum):
    """Splits that the controller reads."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


class TaskState(StrEnum):
    """State of a task in the catalog."""

    NEEDS_PROBE = "needs_probe"
    EVALUABLE = "evaluable"
    TRAINABLE = "trainable"
    REJECTED = "rejected"
    FLAKY = "flaky"


class GroupState(StrEnum):
    """State of a group in the trajectory store."""

    OPEN = "open"
    AVAILABLE = "available"
    INSUFFICIENT = "insufficient"
    TAKEN = "taken"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    EVALUATED = "evaluated"


class OutcomeKind(StrEnum):
    """How an attempt ended."""

    SCORED = "scored"
    FAILED = "failed"
    DISCARDED = "discarded"


class LeaseState(StrEnum):
    """State of an attempt in the lease queue."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"


class StepPhase(StrEnum):
    """Which job reported a step."""

    WARM_START = "warm_start"
    TRAIN = "train"


class Verdict(StrEnum):
    """What the paired evaluation says about the final policy against the base."""

    IMPROVED = "improved"
    NO_DIFFERENCE = "no_difference"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


class EventKind(StrEnum):
    """Kinds of run events."""

    RUN_STATE = "run.state"
    WARM_START = "warm_start"
    STEP = "step"
    PUBLISH = "publish"
    EVAL = "eval"
    REFILL = "group.refill"
    LEASE_EXPIRED = "lease.expired"
    ATTEMPT_RETRIED = "attempt.retried"
    ATTEMPT_FAILED = "attempt.failed"
    TRAINER_RESTART = "trainer.restart"
    TRAINER_STARTED = "trainer.started"


class UnreadyTasks(StrEnum):
    """What to do with tasks that have no probe evidence."""

    REFUSE = "refuse"
    EXCLUDE = "exclude"


READY_STATES = frozenset({TaskState.EVALUABLE, TaskState.TRAINABLE})
UNUSABLE_GROUPS = frozenset({GroupState.INSUFFICIENT, GroupState.DISCARDED})
