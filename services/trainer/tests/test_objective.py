"""The sums that a step's metrics are made of."""

import math

import pytest
import torch

from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.objective import METRIC_NAMES, TokenBatch, objective

HP = PolicyHyperparameters(clip_low=0.2, clip_high=0.2, dual_clip=None)


def sums_of(ratios: list[float], advantages: list[float]) -> tuple[dict[str, float], float]:
    """Of tokens whose behaviour had log-probability -1."""
    logprobs = torch.tensor([-1.0 + math.log(ratio) for ratio in ratios])
    count = len(ratios)
    batch = TokenBatch(
        behaviour_N=torch.full((count,), -1.0),
        advantages_N=torch.tensor(advantages),
        weights_N=torch.full((count,), 1.0),
        reference_N=torch.full((count,), math.nan),
    )
    _, sums, worst = objective(logprobs, torch.zeros(count), batch, HP)
    return dict(zip(METRIC_NAMES, sums.tolist(), strict=True)), float(worst)


def test_clips_are_counted_by_side() -> None:
    sums, _ = sums_of([1.5, 1.5, 0.5, 0.5, 1.0], [1.0, -1.0, 1.0, -1.0, 1.0])
    assert (sums["clipped_high"], sums["clipped_low"], sums["tokens"]) == (1, 1, 5)


def test_the_worst_token_shows_what_the_mean_hides() -> None:
    sums, worst = sums_of([1.0] * 99 + [3.0], [1.0] * 100)
    k3 = 1 / 3 - 1 + math.log(3)
    assert worst == pytest.approx(k3, rel=1e-4)
    assert worst == pytest.approx(sums["mismatch"], rel=1e-4)
    assert worst > 50 * sums["mismatch"] / sums["tokens"]


def test_no_tokens_have_no_worst() -> None:
    assert sums_of([], []) == (dict.fromkeys(METRIC_NAMES, 0.0), 0.0)
