"""How an attempt ended: scored, failed or discarded, with the contracts' names.

An absent reward is never zero: only `Scored` has a reward, and it is finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from longshore_common.errors import InvalidSpec


class Termination(StrEnum):
    """How a scored attempt ended."""

    AGENT_DONE = "agent_done"
    AGENT_TIMEOUT = "agent_timeout"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_EXCEEDED = "context_exceeded"
    AGENT_ERROR = "agent_error"
    AGENT_BROKE_VERIFIER = "agent_broke_verifier"
    """The agent's state does not grade though the oracle's does: scored 0."""


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


class DiscardReason(StrEnum):
    """Why an attempt is not used although nothing failed."""

    STALE = "stale"
    CANCELLED = "cancelled"
    SURPLUS = "surplus"


class TamperResistance(StrEnum):
    """How hard it was for the agent to forge its reward."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Scored:
    """The attempt has a reward."""

    reward: float
    termination: Termination


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt has no reward; `evidence` is for people."""

    failure: Failure
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The attempt is not used."""

    reason: DiscardReason


Outcome = Scored | Failed | Discarded


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and where it came from."""

    reward: float
    keys: Mapping[str, float] = field(default_factory=dict)
    file_name: str = ""
    file_digest: str = ""
    tests_digest: str = ""
    image_digest: str = ""
    exit_status: int = 0
    output_head: str = ""
    output_tail: str = ""
    output_truncated: bool = False
    ctrf_json: str = ""
    duration_s: float = 0.0
    tamper_resistance: TamperResistance | None = None
    regraded: bool = False


def check_outcome(outcome: Outcome | None, reward: Reward | None) -> None:
    """Refuses an outcome that contradicts itself or the reward's provenance.

    Raises:
        InvalidSpec: no outcome; a NaN or infinite reward; a reward beside a failure; provenance of another reward.
    """
    if outcome is None:
        raise InvalidSpec("Seal needs an outcome: scored or failed", field="outcome")
    if isinstance(outcome, Discarded):
        raise InvalidSpec("Seal cannot discard: call Discard", field="outcome.discarded")
    if isinstance(outcome, Failed):
        if reward is not None:
            raise InvalidSpec(
                f"a failed attempt ({outcome.failure}) has no reward: send none (absent is not zero)", field="reward"
            )
        return
    _check_scored(outcome, reward)


def _check_scored(outcome: Scored, reward: Reward | None) -> None:
    if not math.isfinite(outcome.reward):
        raise InvalidSpec(
            f"reward {outcome.reward} is not finite: seal the attempt as failed {Failure.REWARD_MALFORMED}",
            field="outcome.scored.reward",
        )
    if outcome.termination is Termination.AGENT_BROKE_VERIFIER and outcome.reward != 0.0:
        raise InvalidSpec(f"{outcome.termination} is scored 0, not {outcome.reward}", field="outcome.scored.reward")
    if reward is None:
        return
    if reward.reward != outcome.reward:
        raise InvalidSpec(
            f"outcome says reward {outcome.reward}, its provenance says {reward.reward}", field="reward.reward"
        )
    for key, value in reward.keys.items():
        if not math.isfinite(value):
            raise InvalidSpec(f"reward key {key!r} is {value}: only finite numbers", field=f"reward.keys.{key}")
