"""What a user may ask for: the run spec. Frozen; unknown keys are refused. Times are seconds, sizes megabytes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from longshore_controller.domain.presets import (
    POLICY_OVERRIDES,
    SUPERVISED_OVERRIDES,
    AlgorithmPreset,
    WarmStartPreset,
    check_overrides,
    check_preset,
)
from longshore_controller.domain.vocabulary import UnreadyTasks

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""Lower-case letters, digits and dashes, at most 63: usable as a Kubernetes name."""


class Frozen(BaseModel):
    """Base of all spec parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSpec(Frozen):
    """The model to start from."""

    path: str = Field(min_length=1)
    """Hugging Face folder; relative to the controller's base folder."""


class TasksSpec(Frozen):
    """Which tasks."""

    dataset: str = Field(min_length=1)
    """Frozen dataset with splits train and test, and dev when dev evaluations are on."""
    unready: UnreadyTasks = UnreadyTasks.REFUSE
    """Tasks without probe evidence: refuse the run, or leave them out and list them in the plan."""


class WarmStartSpec(Frozen):
    """Full-parameter supervised start; its result is policy version 0."""

    preset: str = WarmStartPreset.SFT.value
    demonstrations: str = Field(min_length=1)
    """JSONL file, one {"messages": [...]} a line."""
    overrides: dict[str, JsonValue] = {}

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_preset(value, WarmStartPreset, "warm-start preset")

    @field_validator("overrides")
    @classmethod
    def _known_overrides(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return check_overrides(value, SUPERVISED_OVERRIDES)


class HarnessSpec(Frozen):
    """What drives the model in the sandbox."""

    name: str = Field(min_length=1)
    version: str = "1"
    config: dict[str, JsonValue] = {}


class RolloutSpec(Frozen):
    """How attempts are made."""

    group_size: int = Field(ge=1, le=1024)
    """Attempts of one task in a group."""
    groups_per_step: int = Field(ge=1, le=4096)
    max_turns: int = Field(default=2, ge=1, le=10_000)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=1_000_000)
    max_tokens: int = Field(default=4096, ge=1, le=10_000_000)
    """Sampled tokens of one attempt."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Zero is refused: a greedy group has no variance to learn from."""
    agent_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """None: the task's own limit; never above it."""
    retries: int = Field(default=2, ge=0, le=100)
    """Of an attempt that failed for lack of infrastructure."""
    min_scored: int = Field(default=2, ge=1)
    """Scored attempts without which a group is not trained on."""
    max_staleness: int = Field(default=0, ge=0, le=64)
    """0: synchronous; 1: one step off."""

    @model_validator(mode="after")
    def _min_scored_fits(self) -> RolloutSpec:
        if self.min_scored > self.group_size:
            raise ValueError(f"min_scored ({self.min_scored}) must not exceed group_size ({self.group_size})")
        return self


class AlgorithmSpec(Frozen):
    """How the policy is updated."""

    preset: str
    steps: int = Field(ge=1, le=1_000_000)
    overrides: dict[str, JsonValue] = {}

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_preset(value, AlgorithmPreset, "algorithm preset")

    @field_validator("overrides")
    @classmethod
    def _known_overrides(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return check_overrides(value, POLICY_OVERRIDES)


class LoraSpec(Frozen):
    """Adapter shape. Without this section all weights are trained."""

    rank: int = Field(ge=1, le=512)
    alpha: float = Field(gt=0)


class EvaluationSpec(Frozen):
    """Dev panels while training, and the paired test at the end."""

    dev_every: int = Field(default=5, ge=0)
    """Steps between dev panels; 0: none."""
    dev_samples: int = Field(default=1, ge=1, le=64)
    test_samples: int = Field(default=1, ge=1, le=64)
    """Attempts of each task by each policy; 1 gives McNemar's test, more the sign test."""
    temperature: float = Field(default=1.0, ge=0, le=10)


class SandboxSpec(Frozen):
    """Lowers the tasks' own limits; cannot raise them."""

    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, ge=16)
    storage_mb: int | None = Field(default=None, ge=1)
    max_processes: int | None = Field(default=None, ge=4)
    max_file_mb: int | None = Field(default=None, ge=1)

    def named(self) -> dict[str, Any]:
        """The limits that are given."""
        return self.model_dump(exclude_none=True)


class VerifierSpec(Frozen):
    """How rewards are graded."""

    regrade: bool = True
    """Grade once more in fresh conditions when the reward is missing for a reason that an agent can cause."""


class RunSpec(Frozen):
    """One run: what to train, on what, how, and how to judge it."""

    name: Name
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    model: ModelSpec
    tasks: TasksSpec
    warm_start: WarmStartSpec | None = None
    harness: HarnessSpec
    rollout: RolloutSpec
    algorithm: AlgorithmSpec
    lora: LoraSpec | None = None
    evaluation: EvaluationSpec = EvaluationSpec()
    sandbox: SandboxSpec = SandboxSpec()
    verifier: VerifierSpec = VerifierSpec()
    keep_checkpoints: int = Field(default=2, ge=1, le=1000)
