from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import Conflict
from longshore_controller.domain.run_state import FINISHED, PHASES, RESUMABLE, check_move, check_resumable
from longshore_controller.domain.vocabulary import RunState


def test_the_whole_way() -> None:
    way = [RunState.PENDING, *PHASES, RunState.SUCCEEDED]
    for current, target in itertools.pairwise(way):
        check_move("r", current, target)


def test_phases_cannot_be_skipped() -> None:
    with pytest.raises(Conflict, match="pending and cannot become training"):
        check_move("r", RunState.PENDING, RunState.TRAINING)


@given(st.sampled_from(sorted(RunState)))
def test_success_is_final(target: RunState) -> None:
    with pytest.raises(Conflict):
        check_move("r", RunState.SUCCEEDED, target)


@given(st.sampled_from(sorted(RunState)))
def test_what_can_be_resumed_goes_back_to_pending(state: RunState) -> None:
    if state in RESUMABLE:
        check_resumable("r", state)
        check_move("r", state, RunState.PENDING)
    else:
        with pytest.raises(Conflict):
            check_resumable("r", state)


def test_every_phase_can_be_interrupted_stopped_and_fail() -> None:
    for phase in PHASES:
        for end in (RunState.INTERRUPTED, RunState.STOPPED, RunState.FAILED):
            check_move("r", phase, end)
    assert RunState.INTERRUPTED not in FINISHED
