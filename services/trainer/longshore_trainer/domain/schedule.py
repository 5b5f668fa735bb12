"""Learning-rate schedules as pure functions of the step."""

import math

from longshore_trainer.domain.hyperparameters import OptimizerHyperparameters
from longshore_trainer.domain.vocabulary import Schedule


def learning_rate(step: int, total_steps: int, hp: OptimizerHyperparameters) -> float:
    """Learning rate of `step` (from 1) out of `total_steps`: linear warm-up, then the schedule."""
    if step <= hp.warmup_steps:
        return hp.learning_rate * step / hp.warmup_steps
    if hp.schedule is Schedule.CONSTANT:
        return hp.learning_rate
    span = max(1, total_steps - hp.warmup_steps)
    left = max(0.0, (total_steps - step + 1) / span)
    if hp.schedule is Schedule.LINEAR:
        return hp.learning_rate * left
    return hp.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))
