from __future__ import annotations

import pytest

from longshore_common.errors import InvalidSpec
from longshore_controller.domain.spec_parsing import parse_spec

from .builders import SPEC


def refused(text: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(text)
    return caught.value.message


def test_a_good_spec_is_parsed_and_defaults_are_filled() -> None:
    spec = parse_spec(SPEC)
    assert spec.rollout.group_size == 2
    assert spec.rollout.max_staleness == 0
    assert spec.verifier.regrade is True


def test_json_is_a_spec_too() -> None:
    import json

    import yaml

    assert parse_spec(json.dumps(yaml.safe_load(SPEC))) == parse_spec(SPEC)


def test_typo_is_refused_with_path_line_and_suggestion() -> None:
    message = refused(SPEC.replace("group_size: 2", "group_sise: 2"))
    assert "rollout.group_sise (line 7): unknown key 'group_sise'; did you mean 'group_size'?" in message
    assert "rollout.group_size (line 7): required but missing" in message


def test_top_level_typo_gets_a_suggestion() -> None:
    assert "did you mean 'algorithm'?" in refused(SPEC.replace("algorithm:", "algoritm:"))


def test_unknown_algorithm_is_refused_with_the_list() -> None:
    message = refused(SPEC.replace("preset: grpo", "preset: grop"))
    assert (
        "algorithm.preset (line 8): unknown algorithm preset 'grop'; did you mean 'grpo'?; known: grpo, rloo" in message
    )


def test_unknown_hyper_parameter_is_refused_before_anything_runs() -> None:
    message = refused(SPEC.replace("learning_rate", "learing_rate"))
    assert "algorithm.overrides" in message
    assert "did you mean 'learning_rate'?" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("steps: 3", "steps: 0"), "algorithm.steps (line 8): input should be greater than or equal to 1; got 0"),
        (("groups_per_step: 2", "groups_per_step: two"), "rollout.groups_per_step (line 7)"),
        (("rank: 4", "rank: -1"), "lora.rank (line 9)"),
        (("min_scored: 2", "min_scored: 3"), "min_scored (3) must not exceed group_size (2)"),
        (("name: demo\nseed", "name: Demo Run\nseed"), "use at most 63 lower-case letters"),
        (("seed: 7", "seed: .nan"), "seed (line 2)"),
    ],
)
def test_ranges_and_types(change: tuple[str, str], expected: str) -> None:
    assert expected in refused(SPEC.replace(*change))


def test_all_problems_are_told_together() -> None:
    text = SPEC.replace("steps: 3", "steps: 0").replace("preset: sft", "preset: dpo").replace("lora:", "lara:")
    message = refused(text)
    assert "3 problems" in message
    for path in ("algorithm.steps", "warm_start.preset", "lara"):
        assert path in message


def test_broken_yaml_names_the_line() -> None:
    assert "not valid YAML at line 2" in refused("name: demo\nseed: 1: 2\n")


def test_a_key_given_twice_is_refused() -> None:
    assert "seed (line 3): given twice, first on line 2" in refused("name: a\nseed: 1\nseed: 2\n")


@pytest.mark.parametrize("text", ["", "- a\n", "just words"])
def test_no_mapping_is_refused(text: str) -> None:
    assert "run spec" in refused(text)


def test_the_example_spec_is_valid() -> None:
    from pathlib import Path

    path = Path(__file__).parents[3] / "examples/runs/demo-grpo.yaml"
    spec = parse_spec(path.read_text())
    assert spec.name == "demo-grpo"
    assert spec.warm_start is not None


def test_hyper_parameter_names_are_the_trainers() -> None:
    from longshore_controller.domain import presets

    trainer = pytest.importorskip("longshore_trainer.domain.hyperparameters")
    known = pytest.importorskip("longshore_trainer.domain.presets").PRESETS
    assert set(trainer.SftHyperparameters.model_fields) == presets.SUPERVISED_OVERRIDES
    assert set(trainer.PolicyHyperparameters.model_fields) == presets.POLICY_OVERRIDES
    assert set(known) == {*presets.WarmStartPreset, *presets.AlgorithmPreset}
