"""domain/attempts: epochs, sealing, siblings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longshore_common.errors import Conflict, InvalidSpec, PermissionDenied
from longshore_trajectory_store.domain.attempts import (
    AttemptState,
    Purpose,
    capture_hole,
    check_epoch,
    is_repeat,
    seal,
)
from longshore_trajectory_store.domain.identity import Sampling, identity_digest
from longshore_trajectory_store.domain.outcomes import Discarded, DiscardReason, Failed, Failure, Scored, Termination
from longshore_trajectory_store.domain.turns import TurnStatus, TurnSummary

from .builders import IDENTITY, a_failed_seal, a_seal, an_attempt


def a_summary(turn: int = 0, **values) -> TurnSummary:
    base = TurnSummary(turn, turn - 1, TurnStatus.OK, True, "", 3, 3, 0, f"sha256:call{turn}", "", "", "")
    return replace(base, **values)


def sealed(attempt_id: str = "g1-0", turns=(a_summary(),), siblings=(), **values):
    purpose = values.pop("purpose", Purpose.TRAIN)
    return seal(an_attempt(attempt_id, purpose=purpose), a_seal(attempt_id, **values), turns, siblings, 9000)


def test_an_older_epoch_is_refused_and_both_are_named() -> None:
    with pytest.raises(PermissionDenied, match="lease epoch 1 is older than epoch 3"):
        check_epoch(an_attempt(epoch=3), 1, "Seal")


def test_sealing_fixes_outcome_identity_and_sums() -> None:
    attempt = sealed(turns=[a_summary(0), a_summary(1, prompt_tokens=8)])
    assert attempt.outcome == Scored(1.0, Termination.AGENT_DONE)
    assert attempt.identity_digest == identity_digest(IDENTITY)
    assert (attempt.turns, attempt.prompt_tokens, attempt.completion_tokens) == (2, 11, 6)
    assert attempt.trainable


def test_incomplete_capture_fails_a_training_attempt_and_says_which_turn() -> None:
    hole = a_summary(1, status=TurnStatus.CAPTURE_INCOMPLETE, untrainable_reason="3 completion ids, 2 logprobs")
    attempt = sealed(turns=[a_summary(0), hole])
    assert attempt.outcome == Failed(Failure.CAPTURE_INCOMPLETE, "turn 1: 3 completion ids, 2 logprobs")
    assert attempt.reward is None


def test_incomplete_capture_leaves_an_evaluation_scored_but_untrainable() -> None:
    hole = a_summary(0, status=TurnStatus.CAPTURE_INCOMPLETE, untrainable_reason="no logprobs")
    attempt = sealed(turns=[hole], purpose=Purpose.EVAL)
    assert isinstance(attempt.outcome, Scored)
    assert not attempt.trainable


def test_a_turn_that_was_never_stored_is_a_hole() -> None:
    assert capture_hole([a_summary(0), a_summary(2)]) == "turn 1 was never stored (the last is 2)"
    assert capture_hole([a_summary(1)]).startswith("turn 0 was never stored")
    assert capture_hole([]) == ""


def test_untrainable_sampling_keeps_the_score() -> None:
    attempt = sealed(turns=[a_summary(0, trainable=False, untrainable_reason="top_p 0.9")])
    assert isinstance(attempt.outcome, Scored)
    assert (attempt.trainable, attempt.untrainable_reason) == (False, "turn 0: top_p 0.9")


def test_a_score_without_a_sampled_token_is_not_trainable() -> None:
    assert sealed(turns=[]).untrainable_reason == "no sampled token was captured"
    error = a_summary(0, status=TurnStatus.ERROR, completion_tokens=0)
    assert sealed(turns=[error]).untrainable_reason == "no sampled token was captured"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"harness_version": "2"}, "harness_version"),
        ({"sampling": Sampling(temperature=0.5, max_tokens=24)}, "sampling.temperature"),
        ({"policy_alias": "other"}, "policy_alias"),
        ({"limits_digest": "sha256:more"}, "limits_digest"),
    ],
)
def test_mixed_identity_names_the_field(change, field) -> None:
    first = sealed("g1-0")
    with pytest.raises(Conflict, match="mixed identity") as caught:
        sealed("g1-1", siblings=[first], identity=replace(IDENTITY, **change))
    assert caught.value.details["field"] == field
    assert field in caught.value.message


def test_seed_and_version_are_not_identity() -> None:
    first = sealed("g1-0")
    other = replace(IDENTITY, sampling=replace(IDENTITY.sampling, seed=99))
    assert sealed("g1-1", siblings=[first], identity=other, start_version=0).identity_digest == first.identity_digest


def test_a_failed_sibling_does_not_bind_the_identity() -> None:
    failed = seal(an_attempt("g1-0"), a_failed_seal("g1-0", identity=None), [], [], 1)
    assert sealed("g1-1", siblings=[failed]).trainable


def test_the_same_calls_from_the_same_sandbox_twice_are_refused() -> None:
    first = sealed("g1-0", sandbox_id="box")
    with pytest.raises(Conflict, match=r"duplicate trace in group g1: attempts g1-0 and g1-1"):
        sealed("g1-1", siblings=[first], sandbox_id="box")
    assert sealed("g1-1", siblings=[first], sandbox_id="another").trainable


def test_identity_must_be_whole_and_of_the_task() -> None:
    with pytest.raises(InvalidSpec) as caught:
        sealed(identity=replace(IDENTITY, image_digest=""))
    assert caught.value.field == "identity.image_digest"
    with pytest.raises(InvalidSpec) as caught:
        sealed(identity=replace(IDENTITY, task_digest="sha256:other"))
    assert caught.value.field == "identity.task_digest"


def test_turns_must_agree_with_identity_and_start_version() -> None:
    with pytest.raises(Conflict, match="tokenizer_digest"):
        sealed(turns=[a_summary(tokenizer_digest="sha256:another")])
    with pytest.raises(Conflict, match="start_version is 3, but turn 0 was sampled by version 2"):
        sealed(turns=[a_summary(min_version=2)], start_version=3)


def test_the_same_seal_again_is_a_repeat_another_is_refused() -> None:
    attempt = sealed()
    assert is_repeat(attempt, a_seal())
    with pytest.raises(Conflict, match=r"already scored 1.0 \(agent_done\)"):
        is_repeat(attempt, a_seal(reward=0.0))


def test_seal_after_discard_is_refused() -> None:
    gone = an_attempt(state=AttemptState.SEALED, outcome=Discarded(DiscardReason.CANCELLED))
    with pytest.raises(Conflict, match=r"already discarded \(cancelled\)"):
        is_repeat(gone, a_seal())
