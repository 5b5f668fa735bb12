"""Estimators of KL(policy || reference) from log-probabilities of sampled tokens (Schulman, approximate KL)."""

import torch
from torch import Tensor

from longshore_trainer.domain.vocabulary import KlEstimator


def kl_estimate(kind: KlEstimator, logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Per-token estimate in nats, 0 where the mask is off or the reference is unknown (NaN). Unclamped."""
    known = mask & ~torch.isnan(reference_logprobs)
    log_ratio = torch.where(known, logprobs - reference_logprobs, 0.0)
    if kind is KlEstimator.K1:
        return log_ratio
    if kind is KlEstimator.K2:
        return 0.5 * log_ratio.square()
    return torch.expm1(-log_ratio) + log_ratio
