"""domain/segments: masks, splices, branches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longshore_trajectory_store.domain.segments import build_segments
from longshore_trajectory_store.domain.turns import Turn, TurnStatus, VersionSpan

from .builders import a_turn

ids = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@st.composite
def trees(draw: st.DrawFn) -> list[Turn]:
    """Turns that extend their parent, branch off it, or start anew; some upstream errors in between."""
    turns: list[Turn] = []
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.integers(-1, index - 1))
        extends = parent >= 0 and turns[parent].status is TurnStatus.OK and draw(st.booleans())
        head = [*turns[parent].prompt_ids.tolist(), *turns[parent].completion_ids.tolist()] if extends else []
        prompt = head + draw(ids)
        sampled = draw(ids)
        split = draw(st.integers(1, len(sampled)))
        spans = (VersionSpan(0, index),) + ((VersionSpan(split, index + 1),) if split < len(sampled) else ())
        turn = a_turn(turn=index, prompt=prompt, sampled=sampled, parent_turn=parent, versions=spans)
        error = draw(st.integers(0, 9)) == 0
        turns.append(replace(turn, status=TurnStatus.ERROR) if error else turn)
    return turns


@given(trees(), st.randoms())
def test_every_sampled_token_is_trained_on_exactly_once_with_its_own_logprob_and_version(turns, random) -> None:
    shuffled = list(turns)
    random.shuffle(shuffled)
    segments = build_segments(shuffled)
    traced = {turn.turn: turn for turn in turns if turn.status is TurnStatus.OK}
    assert sorted(index for segment in segments for index in segment.turns) == sorted(traced)
    for segment in segments:
        size = segment.token_ids.size
        assert {segment.loss_mask.size, segment.logprobs.size, segment.versions.size} == {size}
        sampled = segment.loss_mask == 1
        members = [traced[index] for index in segment.turns]
        assert segment.token_ids[sampled].tolist() == [x for t in members for x in t.completion_ids.tolist()]
        assert segment.logprobs[sampled].tolist() == [x for t in members for x in t.logprobs.tolist()]
        want = [max((s for s in t.versions if s.first_token <= i), key=lambda s: s.first_token).version
                for t in members for i in range(t.completion_ids.size)]  # fmt: skip
        assert segment.versions[sampled].tolist() == want
        assert not segment.logprobs[~sampled].any()
        assert (segment.versions[~sampled] == -1).all()


@given(trees())
def test_a_segment_is_exactly_what_its_last_turn_saw_and_said(turns) -> None:
    by_index = {turn.turn: turn for turn in turns}
    for segment in build_segments(turns):
        last = by_index[segment.turns[-1]]
        whole = [*last.prompt_ids.tolist(), *last.completion_ids.tolist()]
        assert segment.token_ids.tolist() == whole
        position = 0
        for index in segment.turns:
            turn = by_index[index]
            position = turn.prompt_ids.size
            assert segment.token_ids[:position].tolist() == turn.prompt_ids.tolist()


def test_sampled_ids_are_kept_when_text_would_re_encode_differently() -> None:
    """TRL #5224: sampled ["he", "llo"] (1, 2) must not become "hello" (0) when a tool turn follows."""
    first = a_turn(prompt=[9], sampled=[1, 2])
    second = a_turn(turn=1, prompt=[9, 1, 2, 7], sampled=[3])
    (segment,) = build_segments([first, second])
    assert segment.token_ids.tolist() == [9, 1, 2, 7, 3]
    assert segment.loss_mask.tolist() == [0, 1, 1, 0, 1]
    re_encoded = a_turn(turn=1, prompt=[9, 0, 7], sampled=[3])
    assert [s.token_ids.tolist() for s in build_segments([first, re_encoded])] == [[9, 1, 2], [9, 0, 7, 3]]


def test_stripped_thinking_splits_the_segment() -> None:
    """SkyRL #104: the template drops an earlier <think> (5, 6): the second turn starts a segment."""
    first = a_turn(prompt=[1], sampled=[5, 6, 2])
    second = a_turn(turn=1, prompt=[1, 2, 7], sampled=[3])
    segments = build_segments([first, second])
    assert [s.token_ids.tolist() for s in segments] == [[1, 5, 6, 2], [1, 2, 7, 3]]
    assert [s.loss_mask.tolist() for s in segments] == [[0, 1, 1, 1], [0, 0, 0, 1]]


def test_two_branches_train_the_shared_prefix_once() -> None:
    root = a_turn(prompt=[1], sampled=[2, 3])
    left = a_turn(turn=1, parent_turn=0, prompt=[1, 2, 3, 4], sampled=[5])
    right = a_turn(turn=2, parent_turn=0, prompt=[1, 2, 3, 6], sampled=[7])
    left_on = a_turn(turn=3, parent_turn=1, prompt=[1, 2, 3, 4, 5, 8], sampled=[9])
    segments = build_segments([root, left, right, left_on])
    assert [s.turns for s in segments] == [(0, 1, 3), (2,)]
    assert segments[1].token_ids.tolist() == [1, 2, 3, 6, 7]
    assert segments[1].loss_mask.tolist() == [0, 0, 0, 0, 1]
    assert segments[1].logprobs[:4].tolist() == [0, 0, 0, 0]


def test_an_upstream_error_is_no_trace() -> None:
    error = a_turn(turn=1, prompt=[1], sampled=[], status=TurnStatus.ERROR, versions=())
    after = a_turn(turn=2, parent_turn=0, prompt=[1, 2, 3, 11, 12, 13, 4], sampled=[5])
    (segment,) = build_segments([a_turn(), error, after])
    assert segment.turns == (0, 2)


def test_arrays_have_the_wire_types() -> None:
    (segment,) = build_segments([a_turn()])
    assert (segment.token_ids.dtype, segment.loss_mask.dtype) == (np.int32, np.uint8)
    assert (segment.logprobs.dtype, segment.versions.dtype) == (np.float32, np.int32)
