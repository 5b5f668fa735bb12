"""domain/turns: what counts as captured, and what tells two captures apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longshore_common.errors import InvalidSpec
from longshore_trajectory_store.domain.turns import (
    TurnStatus,
    TurnSummary,
    VersionSpan,
    admitted,
    call_digest,
    check_key,
    trace_digest,
)

from .builders import a_turn


def summary(turn) -> TurnSummary:
    values = {"prompt_tokens": turn.prompt_ids.size, "completion_tokens": turn.completion_ids.size}
    names = ("turn", "parent_turn", "status", "trainable", "untrainable_reason")
    digests = ("template_digest", "tokenizer_digest", "base_digest")
    copied = {name: getattr(turn, name) for name in names + digests}
    return TurnSummary(**copied, **values, min_version=0, call_digest=call_digest(turn))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"logprobs": np.array([-1.0, -2.0], np.float32)}, "3 completion ids, 2 logprobs"),
        ({"logprobs": np.array([-1.0, np.nan, -2.0], np.float32)}, "not finite"),
        ({"logprobs": np.array([-1.0, 0.5, -2.0], np.float32)}, "above 0"),
        ({"versions": ()}, "no policy version"),
        ({"versions": (VersionSpan(1, 0),)}, "no policy version"),
        ({"versions": (VersionSpan(0, 0), VersionSpan(3, 1))}, "spans start at [0, 3]"),
        ({"prompt_ids": np.array([], np.int32)}, "without prompt ids"),
    ],
)
def test_what_does_not_match_is_incomplete_never_padded(values, reason) -> None:
    """rllm #816: a fall-back encode desynchronised the logprobs, which were then zero-padded."""
    kept = admitted(a_turn(**values))
    assert kept.status is TurnStatus.CAPTURE_INCOMPLETE
    assert not kept.trainable
    assert reason in kept.untrainable_reason
    assert kept.completion_ids.tolist() == [11, 12, 13]
    assert kept.logprobs.size == values.get("logprobs", kept.logprobs).size


def test_a_whole_capture_is_kept_as_it_is() -> None:
    turn = a_turn()
    assert admitted(turn) is turn


def test_an_error_is_never_trainable() -> None:
    kept = admitted(a_turn(sampled=[], status=TurnStatus.ERROR, versions=()))
    assert (kept.status, kept.trainable, kept.untrainable_reason) == (TurnStatus.ERROR, False, "upstream error")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"attempt_id": ""}, "turn.attempt_id"),
        ({"lease_epoch": 0}, "turn.lease_epoch"),
        ({"turn": -1}, "turn.turn"),
        ({"turn": 1, "parent_turn": 1}, "turn.parent_turn"),
        ({"prompt_ids": np.array([-1], np.int32)}, "turn.prompt_ids"),
    ],
)
def test_a_turn_without_a_place_is_refused(values, field) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_key(replace(a_turn(), **values))
    assert caught.value.field == field


def test_equal_tokens_are_no_duplicate_but_the_same_calls_are() -> None:
    """At temperature 1 a small model honestly samples the same command twice; times and bodies differ then."""
    one = a_turn(response_zst=b"chatcmpl-1")
    later = replace(one, attempt_id="g1-1", received_at_ms=5001)
    copied = replace(one, attempt_id="g1-1")
    assert trace_digest("box", [summary(one)]) != trace_digest("box", [summary(later)])
    assert trace_digest("box", [summary(one)]) == trace_digest("box", [summary(copied)])
    assert trace_digest("box", [summary(one)]) != trace_digest("other box", [summary(copied)])


def test_nothing_sampled_is_no_trace() -> None:
    error = admitted(a_turn(sampled=[], status=TurnStatus.ERROR, versions=()))
    assert trace_digest("box", [summary(error)]) == ""
