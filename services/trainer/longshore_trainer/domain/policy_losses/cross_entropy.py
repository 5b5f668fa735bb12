"""Negative log-likelihood."""

import torch

from longshore_trainer.domain.hyperparameters import Hyperparameters
from longshore_trainer.domain.policy_losses.types import TokenLoss, TokenLossInputs


def cross_entropy(inputs: TokenLossInputs, hp: Hyperparameters) -> TokenLoss:
    """-logprob on trained tokens; advantages and behaviour are not used."""
    loss = torch.where(inputs.mask, -inputs.logprobs, 0.0)
    return TokenLoss(loss=loss, clipped=torch.zeros_like(loss, dtype=torch.bool))
