import math

import pytest
import torch
from torch import Tensor

from longshore_trainer.domain.hyperparameters import PolicyHyperparameters, SftHyperparameters
from longshore_trainer.domain.policy_losses import POLICY_LOSSES
from longshore_trainer.domain.policy_losses.ppo_clip import ppo_clip
from longshore_trainer.domain.policy_losses.types import TokenLossInputs
from longshore_trainer.domain.vocabulary import PolicyLoss

HP = PolicyHyperparameters(clip_low=0.2, clip_high=0.2, dual_clip=1.5)


def inputs(ratios: list[float], advantages: list[float], mask: list[bool] | None = None) -> TokenLossInputs:
    return TokenLossInputs(
        logprobs=torch.tensor(ratios).log(),
        behaviour_logprobs=torch.zeros(len(ratios)),
        advantages=torch.tensor(advantages),
        mask=torch.tensor(mask or [True] * len(ratios)),
    )


def losses(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach()]


def test_every_loss_is_registered() -> None:
    assert set(POLICY_LOSSES) == set(PolicyLoss)


def test_slime_golden_dual_clip() -> None:
    """slime test_policy_loss: ratios [2, 2, .5], A [2, -2, 2], eps .2, c 1.5."""
    result = ppo_clip(inputs([2.0, 2.0, 0.5], [2.0, -2.0, 2.0]), HP)
    assert losses(result.loss) == pytest.approx([-2.4, 3.0, -1.0])
    assert result.clipped.tolist() == [True, True, False]


def test_without_dual_clip_a_negative_advantage_is_unbounded() -> None:
    hp = PolicyHyperparameters(dual_clip=None)
    assert losses(ppo_clip(inputs([2.0], [-2.0]), hp).loss) == pytest.approx([4.0])


def test_high_and_low_range_are_separate() -> None:
    hp = PolicyHyperparameters(clip_low=0.1, clip_high=0.5, dual_clip=None)
    result = ppo_clip(inputs([1.4, 0.5], [1.0, -1.0]), hp)
    assert losses(result.loss) == pytest.approx([-1.4, 0.9])
    assert result.clipped.tolist() == [False, True]


def test_unknown_behaviour_has_ratio_one_trl_6166() -> None:
    """TRL #6166/#6693: logprobs [-.1, None] -> ratio exactly 1 at None, finite loss, and a gradient."""
    logprobs = torch.tensor([-0.1, -5.0], requires_grad=True)
    given = TokenLossInputs(
        logprobs, torch.tensor([-0.1, math.nan]), torch.tensor([1.0, 2.0]), torch.ones(2, dtype=torch.bool)
    )
    result = ppo_clip(given, HP)
    assert losses(result.loss) == [-1.0, -2.0]
    result.loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("loss", list(PolicyLoss))
def test_masked_positions_never_leak(loss: PolicyLoss, poison: float) -> None:
    """Masking by multiplication turns NaN * 0 into NaN; `where` does not, nor in the gradient of other tokens."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    given = TokenLossInputs(
        logprobs, torch.tensor([-1.0, poison]), torch.tensor([1.0, poison]), torch.tensor([True, False])
    )
    hp = HP if loss is PolicyLoss.PPO_CLIP else SftHyperparameters()
    result = POLICY_LOSSES[loss](given, hp)
    values = losses(result.loss)
    assert values[1] == 0.0
    assert math.isfinite(values[0])
    result.loss.sum().backward()
    assert logprobs.grad is not None
    assert math.isfinite(float(logprobs.grad[0]))
    assert float(logprobs.grad[1]) == 0.0


def test_same_policy_has_ratio_one_on_the_end_token_skyrl_2148() -> None:
    """SkyRL #2148: a fill of 0.0 for the end token's logprob gave ratio P(EOS)."""
    logprob = math.log(0.01)
    given = TokenLossInputs(
        torch.tensor([logprob]), torch.tensor([logprob]), torch.tensor([1.0]), torch.ones(1, dtype=torch.bool)
    )
    assert losses(ppo_clip(given, HP).loss) == [-1.0]
