"""PPO's clipped surrogate, with asymmetric range (DAPO) and dual clip."""

import torch
from torch import Tensor

from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters
from longshore_trainer.domain.policy_losses.types import TokenLoss, TokenLossInputs


def ppo_clip(inputs: TokenLossInputs, hp: Hyperparameters) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)); for A < 0 at most -A c (dual clip)."""
    if not isinstance(hp, PolicyHyperparameters):
        raise TypeError("ppo_clip needs the hyper-parameters of policy optimisation")
    ratio = importance_ratio(inputs.logprobs, inputs.behaviour_logprobs, inputs.mask)
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - hp.clip_low, 1.0 + hp.clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if hp.dual_clip is not None:
        ceiling = -advantages * hp.dual_clip
        over = (advantages < 0) & (loss > ceiling)
        loss = torch.where(over, ceiling, loss)
        clipped = clipped | over
    return TokenLoss(loss=torch.where(inputs.mask, loss, 0.0), clipped=clipped & inputs.mask)


def importance_ratio(logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor) -> Tensor:
    """exp(logprobs - behaviour), 1 where masked; where the behaviour is unknown (NaN) 1 with the policy's gradient."""
    behaviour = torch.where(torch.isnan(behaviour_logprobs), logprobs.detach(), behaviour_logprobs)
    return torch.exp(torch.where(mask, logprobs - behaviour, 0.0))
