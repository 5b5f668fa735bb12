"""Presets: named configurations of one code path. `resolve` turns a preset and overrides into hyper-parameters."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters, SftHyperparameters
from longshore_trainer.domain.vocabulary import AdvantageEstimator, JobKind


@dataclass(frozen=True)
class Preset:
    """A named configuration: values over the defaults of its kind's model."""

    kind: JobKind
    source: str
    """Where the formula comes from, for people."""
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "sft": Preset(
            JobKind.SFT,
            "negative log-likelihood of the assistant's tokens",
            MappingProxyType({"learning_rate": 2e-5, "warmup_steps": 20, "schedule": "linear"}),
        ),
        "grpo": Preset(
            JobKind.RL,
            "DeepSeekMath, arXiv 2402.03300, with a token mean",
            MappingProxyType({"advantage": AdvantageEstimator.GRPO}),
        ),
        "rloo": Preset(
            JobKind.RL,
            "Ahmadian et al., arXiv 2402.14740, with PPO's clip for the later epochs",
            MappingProxyType({"advantage": AdvantageEstimator.RLOO, "advantage_std": False}),
        ),
    }
)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def resolve(name: str, kind: JobKind, overrides: Mapping[str, Any]) -> Hyperparameters:
    """Hyper-parameters of a preset with overrides.

    Raises InvalidSpec for an unknown preset, a preset of the other kind, an unknown override or a bad value.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise InvalidSpec(f"unknown preset {name!r}{suggestion(name, PRESETS)}", field="preset")
    if preset.kind is not kind:
        raise InvalidSpec(f"preset {name!r} is for {preset.kind} jobs, this job is {kind}", field="preset")
    model = SftHyperparameters if kind is JobKind.SFT else PolicyHyperparameters
    for key in overrides:
        if key not in model.model_fields:
            raise InvalidSpec(
                f"unknown override {key!r} of preset {name!r}{suggestion(key, model.model_fields)}",
                field=f"overrides.{key}",
            )
    try:
        return model.model_validate({**preset.values, **overrides})
    except ValidationError as error:
        raise invalid_spec(error, "overrides") from error


def invalid_spec(error: ValidationError, prefix: str = "") -> InvalidSpec:
    """One readable error for the first thing that pydantic found."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    where = ".".join(part for part in (prefix, path) if part)
    return InvalidSpec(f"{where}: {first['msg']} (got {first.get('input')!r})", field=where)
