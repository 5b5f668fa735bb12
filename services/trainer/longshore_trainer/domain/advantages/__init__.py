"""Advantage estimators: rewards of one group in, one advantage per scored attempt out. One module each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from longshore_trainer.domain.advantages.grpo import grpo
from longshore_trainer.domain.advantages.rloo import rloo
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.vocabulary import AdvantageEstimator

Estimator = Callable[[NDArray[np.float64], PolicyHyperparameters], NDArray[np.float64]]

ESTIMATORS: Mapping[AdvantageEstimator, Estimator] = MappingProxyType(
    {
        AdvantageEstimator.GRPO: lambda rewards_G, hp: grpo(rewards_G, std=hp.advantage_std),
        AdvantageEstimator.RLOO: lambda rewards_G, hp: rloo(rewards_G),
    }
)


def group_advantages(rewards_G: list[float | None], hp: PolicyHyperparameters) -> NDArray[np.float64]:
    """Advantages of one group, shape (G,); NaN where the reward is absent.

    An absent reward enters neither the baseline nor the loss. A group of one scored attempt, or without variance,
    has advantages 0. Negative ones are scaled by `negative_advantage_scale` after normalisation.
    """
    advantages_G = np.full(len(rewards_G), np.nan)
    scored = np.array([reward is not None for reward in rewards_G], dtype=bool)
    rewards_S = np.array([reward for reward in rewards_G if reward is not None], dtype=np.float64)
    if rewards_S.size == 0:
        return advantages_G
    if is_zero_variance(rewards_G):
        advantages_G[scored] = 0.0
        return advantages_G
    advantages_S = ESTIMATORS[hp.advantage](rewards_S, hp)
    advantages_G[scored] = np.where(advantages_S < 0, advantages_S * hp.negative_advantage_scale, advantages_S)
    return advantages_G


def is_zero_variance(rewards_G: list[float | None]) -> bool:
    """True when the scored rewards do not tell attempts apart (also for none or a single one)."""
    return len({reward for reward in rewards_G if reward is not None}) <= 1
