import subprocess
import sys

import pytest

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters, SftHyperparameters
from longshore_trainer.domain.presets import PRESETS, resolve
from longshore_trainer.domain.vocabulary import AdvantageEstimator, JobKind


def test_every_preset_resolves() -> None:
    for name, preset in PRESETS.items():
        model = SftHyperparameters if preset.kind is JobKind.SFT else PolicyHyperparameters
        assert isinstance(resolve(name, preset.kind, {}), model)


def test_presets_differ_only_in_values() -> None:
    grpo, rloo = resolve("grpo", JobKind.RL, {}), resolve("rloo", JobKind.RL, {})
    assert grpo.model_copy(update={"advantage": AdvantageEstimator.RLOO, "advantage_std": False}) == rloo


def test_overrides_win() -> None:
    hp = resolve("grpo", JobKind.RL, {"clip_high": 0.3, "kl_estimator": "k1"})
    assert isinstance(hp, PolicyHyperparameters)
    assert (hp.clip_high, hp.kl_estimator) == (0.3, "k1")


@pytest.mark.parametrize(
    ("name", "kind", "overrides", "field", "says"),
    [
        ("gropo", JobKind.RL, {}, "preset", "did you mean 'grpo'"),
        ("nothing-like-it", JobKind.RL, {}, "preset", "known: grpo, rloo, sft"),
        ("sft", JobKind.RL, {}, "preset", "for sft jobs"),
        ("grpo", JobKind.RL, {"learning_rat": 1}, "overrides.learning_rat", "did you mean 'learning_rate'"),
        ("grpo", JobKind.RL, {"clip_low": 2}, "overrides.clip_low", "less than 1"),
        ("grpo", JobKind.RL, {"learning_rate": float("nan")}, "overrides.learning_rate", "nan"),
        ("sft", JobKind.SFT, {"phases": []}, "overrides.phases", "at least 1"),
    ],
)
def test_bad_presets_and_overrides_are_refused(
    name: str, kind: JobKind, overrides: dict[str, object], field: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve(name, kind, overrides)
    assert caught.value.field == field
    assert says in caught.value.message


def test_presets_do_not_import_torch() -> None:
    code = "import sys; import longshore_trainer.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
