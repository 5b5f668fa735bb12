import json
from typing import Any

import pytest

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.job import parse_job

GOOD: dict[str, Any] = {
    "kind": "rl",
    "run_id": "run-1",
    "incarnation": 2,
    "alias": "demo",
    "seed": 1,
    "addresses": {"trajectory": "127.0.0.1:1", "gateway": "127.0.0.1:2", "controller": "127.0.0.1:3"},
    "model_dir": "v0",
    "out_dir": "out",
    "preset": "grpo",
    "overrides": {"epochs": 3},
    "steps": 15,
    "groups_per_step": 12,
    "max_staleness": 0,
    "demonstrations": None,
    "lora": {"rank": 16, "alpha": 32},
    "keep_checkpoints": 2,
}


def test_the_job_of_the_controller_is_read() -> None:
    job = parse_job(json.dumps(GOOD), "job.json")
    hp = job.hyperparameters()
    assert isinstance(hp, PolicyHyperparameters)
    assert (hp.epochs, job.lora is not None and job.lora.rank) == (3, 16)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stepps": 3}, "stepps"),
        ({"incarnation": 0}, "incarnation"),
        ({"addresses": {"trajectory": "a:1", "gateway": "a:1"}}, ""),
        ({"addresses": {"store": "a:1"}}, "addresses.store"),
        ({"kind": "sft", "preset": "sft", "overrides": {}}, ""),
        ({"kind": "grpo"}, "kind"),
        ({"preset": "ppoo"}, "preset"),
        ({"overrides": {"epoch": 3}}, "overrides.epoch"),
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"steps": 0}, ""),
    ],
)
def test_bad_jobs_are_refused_with_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(json.dumps(GOOD | change), "job.json")
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "rl"}'])
def test_what_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_job(text, "job.json")
