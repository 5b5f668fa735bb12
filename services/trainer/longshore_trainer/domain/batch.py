"""What a training step reads: groups of attempts, each of segments; and how they become examples with advantages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.advantages import group_advantages, is_zero_variance
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters


@dataclass(frozen=True)
class Segment:
    """A run of tokens in which every turn's prompt extends what came before. Arrays of shape (T,)."""

    token_ids_T: NDArray[np.int32]
    loss_mask_T: NDArray[np.bool_]
    """True exactly on sampled tokens."""
    logprobs_T: NDArray[np.float32]
    """Of the policy that sampled; never read where the mask is off."""
    versions_T: NDArray[np.int32]
    """Policy version of each sampled token; -1 elsewhere."""


@dataclass(frozen=True)
class Attempt:
    """One attempt; a failed one has no reward."""

    attempt_id: str
    reward: float | None
    staleness: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Group:
    """Attempts of one identity at one task."""

    group_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class Batch:
    """The groups of one training step."""

    batch_id: str
    step: int
    groups: tuple[Group, ...]

    @property
    def group_ids(self) -> list[str]:
        """For the ledger."""
        return [group.group_id for group in self.groups]


@dataclass(frozen=True)
class Example:
    """A segment ready for the loss. Arrays of shape (T,)."""

    attempt: int
    """Index of its attempt among those that are trained on; minibatches are cut along attempts."""
    token_ids_T: NDArray[np.int32]
    loss_mask_T: NDArray[np.bool_]
    behaviour_T: NDArray[np.float32]
    advantages_T: NDArray[np.float32]
    """The attempt's advantage on its own sampled tokens, 0 elsewhere."""

    @property
    def length(self) -> int:
        """Tokens, prompt included."""
        return int(self.token_ids_T.size)

    @property
    def trained_tokens(self) -> int:
        """Tokens that enter the loss."""
        return int(self.loss_mask_T.sum())


@dataclass(frozen=True)
class BatchStatistics:
    """Figures of a batch that need no model."""

    reward_mean: float
    solve_rate: float
    """Share of the scored attempts with reward 1 or more."""
    groups: int
    zero_variance_groups: int
    attempts_scored: int
    attempts_failed: int
    staleness_mean: float
    """Lag of the scored attempts, in policy versions."""
    staleness_max: int


def check_segment(segment: Segment, attempt_id: str) -> None:
    """Raises InvalidSpec: arrays disagree, the first token is to be trained, or a sampled token has no version."""
    length = segment.token_ids_T.size
    sizes = {segment.loss_mask_T.size, segment.logprobs_T.size, segment.versions_T.size}
    if sizes != {length} or length == 0:
        raise InvalidSpec(
            f"attempt {attempt_id}: a segment's arrays have lengths {sorted(sizes | {length})}", field="segments"
        )
    if segment.loss_mask_T[0]:
        raise InvalidSpec(
            f"attempt {attempt_id}: the first token of a segment cannot be a sampled one", field="loss_mask"
        )
    if ((segment.versions_T >= 0) != segment.loss_mask_T).any():
        raise InvalidSpec(f"attempt {attempt_id}: versions and loss mask name different tokens", field="versions")


def make_examples(batch: Batch, hp: PolicyHyperparameters) -> list[Example]:
    """Examples of all scored attempts that have trained tokens. Failed attempts enter nothing."""
    examples: list[Example] = []
    attempt_index = 0
    for group in batch.groups:
        advantages_G = group_advantages([attempt.reward for attempt in group.attempts], hp)
        for attempt, advantage in zip(group.attempts, advantages_G, strict=True):
            segments = [segment for segment in attempt.segments if segment.loss_mask_T.any()]
            if attempt.reward is None or not segments:
                continue
            examples.extend(_example(segment, attempt_index, float(advantage)) for segment in segments)
            attempt_index += 1
    return examples


def _example(segment: Segment, attempt: int, advantage: float) -> Example:
    mask = segment.loss_mask_T
    return Example(
        attempt=attempt,
        token_ids_T=segment.token_ids_T,
        loss_mask_T=mask,
        behaviour_T=np.where(mask, segment.logprobs_T, np.float32(0)),
        advantages_T=np.where(mask, np.float32(advantage), np.float32(0)),
    )


def statistics(batch: Batch) -> BatchStatistics:
    """Figures over all groups; means over scored attempts, 0 when there is none."""
    rewards = [attempt.reward for group in batch.groups for attempt in group.attempts]
    lags = [attempt.staleness for group in batch.groups for attempt in group.attempts if attempt.reward is not None]
    scored = np.array([reward for reward in rewards if reward is not None], dtype=np.float64)
    return BatchStatistics(
        reward_mean=float(scored.mean()) if scored.size else 0.0,
        solve_rate=float((scored >= 1.0).mean()) if scored.size else 0.0,
        groups=len(batch.groups),
        zero_variance_groups=sum(is_zero_variance([a.reward for a in group.attempts]) for group in batch.groups),
        attempts_scored=int(scored.size),
        attempts_failed=len(rewards) - int(scored.size),
        staleness_mean=float(np.mean(lags)) if lags else 0.0,
        staleness_max=max(lags, default=0),
    )


def attempt_tokens(examples: Sequence[Example]) -> NDArray[np.int64]:
    """Trained tokens of every attempt, shape (A,)."""
    counts_A = np.zeros(1 + max((example.attempt for example in examples), default=-1), dtype=np.int64)
    for example in examples:
        counts_A[example.attempt] += example.trained_tokens
    return counts_A
