"""Turns to segments: what a trainer reads.

A turn whose prompt extends parent.prompt + parent.completion continues its parent's segment, when that segment still
ends there; every other turn starts a new one. The mask is 1 exactly on sampled tokens, each of which is trained on in
one segment only: a branch repeats the shared prefix with mask 0. Nothing is re-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from longshore_trajectory_store.domain.turns import Floats, Ids, Turn, TurnStatus, token_versions


@dataclass(frozen=True, slots=True)
class Segment:
    """All arrays have length T. Where the mask is 0, logprobs are 0 (never read) and versions are -1."""

    token_ids: Ids
    loss_mask: npt.NDArray[np.uint8]
    logprobs: Floats
    versions: Ids
    turns: tuple[int, ...]


@dataclass(slots=True)
class _Growing:
    tokens: list[Ids] = field(default_factory=list)
    masks: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)
    versions: list[Ids] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def given(self, ids: Ids) -> None:
        self.tokens.append(ids)
        self.masks.append(np.zeros(ids.size, np.uint8))
        self.logprobs.append(np.zeros(ids.size, np.float32))
        self.versions.append(np.full(ids.size, -1, np.int32))

    def sampled(self, turn: Turn) -> None:
        self.tokens.append(turn.completion_ids)
        self.masks.append(np.ones(turn.completion_ids.size, np.uint8))
        self.logprobs.append(turn.logprobs)
        self.versions.append(token_versions(turn))
        self.turns.append(turn.turn)

    def finished(self) -> Segment:
        return Segment(
            np.concatenate(self.tokens),
            np.concatenate(self.masks),
            np.concatenate(self.logprobs),
            np.concatenate(self.versions),
            tuple(self.turns),
        )


def extends(turn: Turn, parent: Turn) -> bool:
    """Whether the prompt starts with parent.prompt + parent.completion, token for token."""
    head, end = parent.prompt_ids.size, parent.prompt_ids.size + parent.completion_ids.size
    prompt = turn.prompt_ids
    return (
        prompt.size >= end
        and np.array_equal(prompt[:head], parent.prompt_ids)
        and np.array_equal(prompt[head:end], parent.completion_ids)
    )


def build_segments(turns: Iterable[Turn]) -> list[Segment]:
    """Segments in order of their first turn. Turns that are not ok, or sampled nothing, are no trace and are left out.

    Args:
        turns: the turns of one attempt and one epoch, in any order.
    """
    traced = sorted((t for t in turns if t.status is TurnStatus.OK and t.completion_ids.size), key=lambda t: t.turn)
    by_index = {turn.turn: turn for turn in traced}
    # The segment that ends exactly after a turn's completion, keyed by that turn.
    open_ends: dict[int, _Growing] = {}
    segments: list[_Growing] = []
    for turn in traced:
        parent = by_index.get(turn.parent_turn)
        growing = None
        if parent is not None and parent.turn in open_ends and extends(turn, parent):
            growing = open_ends.pop(parent.turn)
            growing.given(turn.prompt_ids[parent.prompt_ids.size + parent.completion_ids.size :])
        if growing is None:
            growing = _Growing()
            growing.given(turn.prompt_ids)
            segments.append(growing)
        growing.sampled(turn)
        open_ends[turn.turn] = growing
    return [growing.finished() for growing in segments]
