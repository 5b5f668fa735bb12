"""Closed vocabularies of an attempt; the values are the contracts' names."""

from enum import StrEnum


class Termination(StrEnum):
    """How a scored attempt ended."""

    AGENT_DONE = "agent_done"
    AGENT_TIMEOUT = "agent_timeout"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_EXCEEDED = "context_exceeded"
    AGENT_ERROR = "agent_error"
    AGENT_BROKE_VERIFIER = "agent_broke_verifier"


class Failure(StrEnum):
    """Why an attempt has no reward."""

    SANDBOX_START = "sandbox_start"
    IMAGE_PULL = "image_pull"
    SANDBOX_LOST = "sandbox_lost"
    SANDBOX_OOM = "sandbox_oom"
    EVICTED = "evicted"
    QUOTA = "quota"
    GATEWAY = "gateway"
    ENGINE = "engine"
    HARNESS_SETUP = "harness_setup"
    VERIFIER_SETUP = "verifier_setup"
    VERIFIER_TIMEOUT = "verifier_timeout"
    REWARD_MISSING = "reward_missing"
    REWARD_MALFORMED = "reward_malformed"
    CAPTURE_INCOMPLETE = "capture_incomplete"


class Stage(StrEnum):
    """Where in an attempt's life a call failed."""

    CLAIM = "claim"
    SESSION = "session"
    SETUP = "setup"
    MODEL = "model"
    COMMAND = "command"
    VERIFY = "verify"
    SEAL = "seal"


class AttemptEnd(StrEnum):
    """What the worker did with a lease, for its own metrics; outcomes are the trajectory store's."""

    SCORED = "scored"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"


class AttemptFailure(Exception):
    """The attempt has no reward: the failure's name and what was seen."""

    def __init__(self, failure: Failure, evidence: str) -> None:
        super().__init__(f"{failure}: {evidence}")
        self.failure, self.evidence = failure, evidence


class OutcomeFixed(Exception):
    """The attempt got its outcome from somebody else while it ran: only the lease is left to be freed."""


class LeaseLost(Exception):
    """Another holder has a newer epoch: stop and write nothing more."""
