"""The lag of an attempt behind the trainer. The take, the sweep, the batch and the metric all use this one function."""

from __future__ import annotations


def staleness(trainer_step: int, start_version: int) -> int:
    """(trainer_step - 1) - start_version.

    Args:
        trainer_step: the step about to be trained, from 1; version N is what step N produces.
        start_version: the policy version the attempt started on.

    Queue time counts: a finished attempt that waits grows older with every step. Negative: the attempt was sampled by a
    version that this trainer has not produced (one lost in a resume).
    """
    return (trainer_step - 1) - start_version


def usable(trainer_step: int, start_version: int, max_staleness: int) -> bool:
    """Whether the attempt may be trained on at this step."""
    return 0 <= staleness(trainer_step, start_version) <= max_staleness
