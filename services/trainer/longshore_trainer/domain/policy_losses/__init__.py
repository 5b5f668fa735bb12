"""Per-token policy losses: log-probabilities and advantages in, loss per token out. One module each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from longshore_trainer.domain.hyperparameters import Hyperparameters
from longshore_trainer.domain.policy_losses.cross_entropy import cross_entropy
from longshore_trainer.domain.policy_losses.ppo_clip import ppo_clip
from longshore_trainer.domain.policy_losses.types import TokenLoss, TokenLossInputs
from longshore_trainer.domain.vocabulary import PolicyLoss

LossFunction = Callable[[TokenLossInputs, Hyperparameters], TokenLoss]

POLICY_LOSSES: Mapping[PolicyLoss, LossFunction] = MappingProxyType(
    {PolicyLoss.PPO_CLIP: ppo_clip, PolicyLoss.CROSS_ENTROPY: cross_entropy}
)
