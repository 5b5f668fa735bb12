"""The loss of one micro-batch as its share of the optimizer step's loss, with the sums that metrics are made of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters
from longshore_trainer.domain.kl import kl_estimate
from longshore_trainer.domain.policy_losses import POLICY_LOSSES
from longshore_trainer.domain.policy_losses.types import TokenLossInputs
from longshore_trainer.domain.vocabulary import KlEstimator


@dataclass(frozen=True)
class TokenBatch:
    """Trained tokens of a micro-batch, flat, shape (N,)."""

    behaviour_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    """Share of each token in the optimizer step's loss; sums with those of all ranks and micro-batches."""
    reference_N: Tensor
    """Log-probabilities of the reference policy; NaN when there is none."""


METRIC_NAMES = ("tokens", "loss", "entropy", "kl", "clipped_high", "clipped_low", "mismatch")
"""Order of `token_sums`."""


def objective(
    logprobs_N: Tensor, entropy_N: Tensor, batch: TokenBatch, hp: Hyperparameters
) -> tuple[Tensor, Tensor, Tensor]:
    """Scalar loss share (carries the gradient), float64 sums of METRIC_NAMES, and the mismatch of the worst token.

    "loss" is the weighted share; the other sums are plain ones over this micro-batch's tokens. A good action is clipped
    high, a bad one low.
    """
    mask_N = torch.ones_like(logprobs_N, dtype=torch.bool)
    inputs = TokenLossInputs(logprobs_N, batch.behaviour_N, batch.advantages_N, mask_N)
    token_loss = POLICY_LOSSES[hp.loss](inputs, hp)
    per_token_N = token_loss.loss
    kl_N = torch.zeros_like(logprobs_N)
    if isinstance(hp, PolicyHyperparameters):
        kl_N = kl_estimate(hp.kl_estimator, logprobs_N, batch.reference_N, mask_N)
        per_token_N = per_token_N + hp.kl_coefficient * kl_N - hp.entropy_coefficient * entropy_N
    loss = (per_token_N * batch.weights_N).sum()
    with torch.no_grad():
        mismatch_N = kl_estimate(KlEstimator.K3, logprobs_N, batch.behaviour_N, mask_N)
        good_N = batch.advantages_N > 0
        clipped = [token_loss.clipped & good_N, token_loss.clipped & ~good_N]
        sums = [mask_N, loss, entropy_N, kl_N, *clipped, mismatch_N]
        worst = mismatch_N.max() if mismatch_N.numel() else mismatch_N.new_zeros(())
        return loss, torch.stack([value.detach().sum().double() for value in sums]), worst.double()
