"""domain/groups and domain/counts."""

from __future__ import annotations

import pytest

from longshore_common.errors import Conflict, InvalidSpec
from longshore_trajectory_store.domain.attempts import AttemptState, Purpose
from longshore_trajectory_store.domain.counts import CountRow, count
from longshore_trajectory_store.domain.groups import GroupState, check_same, check_spec, settle
from longshore_trajectory_store.domain.outcomes import (
    Discarded,
    DiscardReason,
    Failed,
    Failure,
    Outcome,
    Scored,
    Termination,
)

from .builders import a_group, an_attempt

SCORED = Scored(1.0, Termination.AGENT_DONE)
FAILED = Failed(Failure.ENGINE)
STALE = Discarded(DiscardReason.STALE)
CANCELLED = Discarded(DiscardReason.CANCELLED)


def members(*outcomes: Outcome | None):
    return [
        an_attempt(
            f"g1-{i}",
            outcome=outcome,
            state=AttemptState.OPEN if outcome is None else AttemptState.SEALED,
            trainable=isinstance(outcome, Scored),
        )
        for i, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("outcomes", "state", "also"),
    [
        ((SCORED, SCORED, None), GroupState.OPEN, ()),
        ((SCORED, SCORED, FAILED), GroupState.AVAILABLE, ()),
        ((SCORED, FAILED, FAILED), GroupState.INSUFFICIENT, ()),
        ((SCORED, SCORED, STALE), GroupState.AVAILABLE, ()),
        ((SCORED, FAILED, STALE), GroupState.DISCARDED, ("g1-0",)),
        ((CANCELLED, CANCELLED, STALE), GroupState.DISCARDED, ()),
        ((SCORED, CANCELLED, CANCELLED), GroupState.INSUFFICIENT, ()),
    ],
)
def test_a_training_group_settles(outcomes, state, also) -> None:
    settlement = settle(a_group(size=3), members(*outcomes))
    assert (settlement.state, settlement.also_stale) == (state, also)


def test_an_evaluation_group_is_evaluated_whatever_failed() -> None:
    group = a_group(size=2, purpose=Purpose.EVAL, min_scored=0)
    assert settle(group, members(FAILED, FAILED)).state is GroupState.EVALUATED
    assert settle(group, members(FAILED, None)).state is GroupState.OPEN
    assert settle(group, members(CANCELLED, CANCELLED)).state is GroupState.DISCARDED


def test_scored_but_untrainable_does_not_count_towards_min_scored() -> None:
    attempts = members(SCORED, SCORED)
    untrainable = [attempts[0], an_attempt("g1-1", outcome=SCORED, state=AttemptState.SEALED, trainable=False)]
    assert settle(a_group(), untrainable).state is GroupState.INSUFFICIENT


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"size": 0, "seeds": (), "min_scored": 0}, "group.size"),
        ({"min_scored": 0}, "group.min_scored"),
        ({"min_scored": 3}, "group.min_scored"),
        ({"seeds": (1,)}, "seeds"),
        ({"task_digest": ""}, "group.task_digest"),
    ],
)
def test_a_group_that_cannot_run_is_refused(values, field) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_spec(a_group(**values), [])
    assert caught.value.field == field


def test_a_duplicate_attempt_is_named() -> None:
    with pytest.raises(InvalidSpec, match="duplicate attempt g1-0"):
        check_spec(a_group(), ["g1-0", "g1-0"])


def test_another_group_under_the_same_id_names_the_field() -> None:
    check_same(a_group(state=GroupState.TAKEN, number=4), a_group())
    with pytest.raises(Conflict, match="min_scored 2, not 1"):
        check_same(a_group(), a_group(min_scored=1))


def test_dropped_attempts_stay_in_the_denominator() -> None:
    """rllm #382, #442: dropped episodes left the denominators; here every attempt is counted somewhere."""
    rows = [
        CountRow(False, "scored", "agent_done", 3, 1),
        CountRow(False, "failed", "engine", 1, 2),
        CountRow(True, "discarded", "stale", 2, 0),
        CountRow(True, "open", "", 4, 0),
    ]
    counts = count(rows)
    assert counts.planned + counts.refilled == counts.scored + counts.failed + counts.discarded + counts.open == 10
    assert (counts.planned, counts.refilled, counts.retried) == (4, 6, 3)
    assert (counts.by_termination, counts.by_failure, counts.by_discard) == (
        {"agent_done": 3},
        {"engine": 1},
        {"stale": 2},
    )
