"""Small valid objects for tests."""

from __future__ import annotations

from longshore_controller.domain.evaluation import AttemptResult
from longshore_controller.domain.planner import TrainingShape

SPEC = """\
name: demo
seed: 7
model: {path: model}
tasks: {dataset: demo}
warm_start: {preset: sft, demonstrations: demonstrations.jsonl}
harness: {name: shell, version: "1", config: {protocol: bare}}
rollout: {group_size: 2, groups_per_step: 2, retries: 1, min_scored: 2, agent_timeout_s: 5}
algorithm: {preset: grpo, steps: 3, overrides: {learning_rate: 1.0e-3}}
lora: {rank: 4, alpha: 8}
evaluation: {dev_every: 2}
"""


def a_result(task: str, reward: float | None, index: int = 0, **values: object) -> AttemptResult:
    fields: dict[str, object] = {
        "task_digest": task,
        "index": index,
        "reward": reward,
        "ending": "verifier_timeout" if reward is None else "agent_done",
        "turns": 2,
        "prompt_tokens": 30,
        "completion_tokens": 10,
        "agent_s": 1.0,
        "verifier_s": 0.5,
    }
    return AttemptResult(**{**fields, **values})  # type: ignore[arg-type]


def a_shape(**values: object) -> TrainingShape:
    fields: dict[str, object] = {
        "run_id": "run-1",
        "seed": 3,
        "tasks": tuple(f"sha256:{i}" for i in range(8)),
        "steps": 4,
        "groups_per_step": 2,
        "group_size": 2,
        "min_scored": 1,
        "max_staleness": 0,
        "max_refills": 3,
    }
    return TrainingShape(**{**fields, **values})  # type: ignore[arg-type]
