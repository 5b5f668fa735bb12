"""The file that tells a trainer job what to do."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue

from longshore_controller.domain.plan import ResolvedPlan
from longshore_controller.domain.spec import LoraSpec


class JobKind(StrEnum):
    """Warm start or reinforcement learning."""

    SFT = "sft"
    RL = "rl"


class Addresses(BaseModel):
    """host:port of the services that the trainer calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectory: str
    gateway: str
    controller: str


class JobFile(BaseModel):
    """Read by `python -m longshore_trainer --job FILE`. The secret travels in the environment, never here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: JobKind
    run_id: str
    incarnation: int
    alias: str
    seed: int
    addresses: Addresses
    model_dir: str
    out_dir: str
    preset: str
    overrides: dict[str, JsonValue]
    steps: int
    groups_per_step: int
    max_staleness: int
    demonstrations: str | None
    lora: LoraSpec | None
    keep_checkpoints: int


def warm_start_job(
    plan: ResolvedPlan, run_id: str, incarnation: int, alias: str, out_dir: Path, addresses: Addresses
) -> JobFile:
    """The supervised start: its `steps` are the preset's own."""
    warm = plan.spec.warm_start
    if warm is None:
        raise ValueError("the plan has no warm start")
    return _job(plan, JobKind.SFT, run_id, incarnation, alias, out_dir, addresses).model_copy(
        update={"preset": warm.preset, "overrides": warm.overrides, "steps": 0, "lora": None}
    )


def rl_job(
    plan: ResolvedPlan, run_id: str, incarnation: int, alias: str, out_dir: Path, base_dir: Path, addresses: Addresses
) -> JobFile:
    """The reinforcement-learning job, starting from version 0 in base_dir."""
    job = _job(plan, JobKind.RL, run_id, incarnation, alias, out_dir, addresses)
    return job.model_copy(update={"model_dir": str(base_dir), "demonstrations": None})


def _job(
    plan: ResolvedPlan, kind: JobKind, run_id: str, incarnation: int, alias: str, out_dir: Path, addresses: Addresses
) -> JobFile:
    spec = plan.spec
    return JobFile(
        kind=kind,
        run_id=run_id,
        incarnation=incarnation,
        alias=alias,
        seed=spec.seed,
        addresses=addresses,
        model_dir=plan.paths.model,
        out_dir=str(out_dir),
        preset=spec.algorithm.preset,
        overrides=spec.algorithm.overrides,
        steps=spec.algorithm.steps,
        groups_per_step=spec.rollout.groups_per_step,
        max_staleness=spec.rollout.max_staleness,
        demonstrations=plan.paths.demonstrations,
        lora=spec.lora,
        keep_checkpoints=spec.keep_checkpoints,
    )
