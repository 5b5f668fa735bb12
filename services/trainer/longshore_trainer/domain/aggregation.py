"""Token weights: an optimizer step's loss is sum(weight * token loss), however ranks and micro-batches split it."""

import numpy as np
from numpy.typing import NDArray

from longshore_trainer.domain.vocabulary import Aggregation


def attempt_token_weights(tokens_A: NDArray[np.int64], kind: Aggregation, norm_length: int) -> NDArray[np.float64]:
    """Weight of each trained token of each attempt, shape (A,).

    `tokens_A` counts the trained tokens of every attempt of the optimizer step, over all ranks and micro-batches,
    so that denominators are global. Attempts without trained tokens weigh 0 and do not enter a denominator.
    """
    present = tokens_A > 0
    if not present.any():
        return np.zeros(tokens_A.shape)
    if kind is Aggregation.TOKEN_MEAN:
        return np.where(present, 1.0 / tokens_A.sum(), 0.0)
    attempts = present.sum()
    if kind is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        return np.where(present, 1.0 / (attempts * np.maximum(tokens_A, 1)), 0.0)
    return np.where(present, 1.0 / (attempts * norm_length), 0.0)
