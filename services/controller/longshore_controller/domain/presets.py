"""Which algorithm presets exist. The trainer owns what they mean; the controller only refuses a name it cannot run."""

from __future__ import annotations

import difflib
from enum import StrEnum


class WarmStartPreset(StrEnum):
    """Supervised presets."""

    SFT = "sft"


class AlgorithmPreset(StrEnum):
    """Reinforcement-learning presets of the contracts."""

    GRPO = "grpo"
    DAPO = "dapo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    GSPO = "gspo"
    CISPO = "cispo"
    PPO = "ppo"


def near_miss(word: str, known: list[str]) -> str:
    """`; did you mean '...'?` for a known word close to this one, otherwise empty."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
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
