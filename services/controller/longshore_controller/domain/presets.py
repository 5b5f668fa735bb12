"""Which presets exist and which hyper-parameters they take.

The trainer owns what they mean and checks the values; here a wrong name is refused before anything starts. A test holds
this table against the trainer's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum

from pydantic import JsonValue


class WarmStartPreset(StrEnum):
    """Supervised presets."""

    SFT = "sft"


class AlgorithmPreset(StrEnum):
    """Reinforcement-learning presets that the trainer has."""

    GRPO = "grpo"
    RLOO = "rloo"


_OPTIMIZER = frozenset(
    {"learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "grad_clip", "warmup_steps"}
    | {"schedule", "micro_batch_tokens", "precision"}
)
SUPERVISED_OVERRIDES = _OPTIMIZER | {
    "phases", "aggregation", "loss", "max_length", "bucket_batches", "report_every", "checkpoint_every",
}  # fmt: skip
POLICY_OVERRIDES = _OPTIMIZER | {
    "advantage", "advantage_std", "negative_advantage_scale", "loss", "clip_low", "clip_high", "dual_clip",
    "kl_coefficient", "kl_estimator", "entropy_coefficient", "aggregation", "norm_length", "epochs", "minibatch_size",
    "temperature",
}  # fmt: skip


def near_miss(word: str, known: Iterable[str]) -> str:
    """`; did you mean '...'?` for a known word close to this one, otherwise empty."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_preset(name: str, presets: type[StrEnum], what: str) -> str:
    """The name, when it is one of the presets.

    Raises:
        ValueError: unknown; the message lists the known ones.
    """
    known = [preset.value for preset in presets]
    if name not in known:
        raise ValueError(f"unknown {what} '{name}'{near_miss(name, known)}; known: {', '.join(known)}")
    return name


def check_overrides(overrides: dict[str, JsonValue], known: frozenset[str]) -> dict[str, JsonValue]:
    """The overrides, when every name is known.

    Raises:
        ValueError: unknown names, each with a suggestion.
    """
    unknown = [f"unknown hyper-parameter '{name}'{near_miss(name, known)}" for name in overrides if name not in known]
    if unknown:
        raise ValueError(f"{'; '.join(unknown)}; known: {', '.join(sorted(known))}")
    return overrides
