"""domain/outcomes: an absent reward is never zero."""

from __future__ import annotations

import math

import pytest

from longshore.common.v1 import outcome_pb2
from longshore_common.errors import InvalidSpec
from longshore_trajectory_store.domain.outcomes import (
    Discarded,
    DiscardReason,
    Failed,
    Failure,
    Reward,
    Scored,
    Termination,
    check_outcome,
)

DONE = Termination.AGENT_DONE


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(InvalidSpec, match="not finite"):
        check_outcome(Scored(reward, DONE), None)


def test_a_grader_crash_is_no_zero() -> None:
    """OpenEnv #1025, rllm #710: a crashed grader counted as reward 0; here a failure cannot bring a reward at all."""
    check_outcome(Failed(Failure.VERIFIER_TIMEOUT), None)
    with pytest.raises(InvalidSpec, match=r"absent is not zero"):
        check_outcome(Failed(Failure.VERIFIER_TIMEOUT), Reward(0.0))


def test_outcome_and_provenance_agree() -> None:
    check_outcome(Scored(0.5, DONE), Reward(0.5, keys={"reward": 0.5}))
    with pytest.raises(InvalidSpec, match=r"provenance says 1\.0"):
        check_outcome(Scored(0.5, DONE), Reward(1.0))
    with pytest.raises(InvalidSpec, match="'speed' is nan"):
        check_outcome(Scored(0.5, DONE), Reward(0.5, keys={"speed": math.nan}))


def test_breaking_the_verifier_is_scored_zero() -> None:
    check_outcome(Scored(0.0, Termination.AGENT_BROKE_VERIFIER), None)
    with pytest.raises(InvalidSpec, match="scored 0"):
        check_outcome(Scored(1.0, Termination.AGENT_BROKE_VERIFIER), None)


def test_seal_needs_an_outcome_and_does_not_discard() -> None:
    with pytest.raises(InvalidSpec, match="needs an outcome"):
        check_outcome(None, None)
    with pytest.raises(InvalidSpec, match="call Discard"):
        check_outcome(Discarded(DiscardReason.STALE), None)


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        (Termination, outcome_pb2.Termination),
        (Failure, outcome_pb2.Failure),
        (DiscardReason, outcome_pb2.DiscardReason),
    ],
)
def test_names_are_those_of_the_protos(kind, wrapper) -> None:
    prefix = {Termination: "TERMINATION_", Failure: "FAILURE_", DiscardReason: "DISCARD_REASON_"}[kind]
    in_proto = {name.removeprefix(prefix).lower() for name in wrapper.keys()} - {"unspecified"}  # noqa: SIM118
    assert in_proto == {member.value for member in kind}
