"""The job file: what the controller asks of one trainer job."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.hyperparameters import Hyperparameters
from longshore_trainer.domain.presets import invalid_spec, resolve, suggestion
from longshore_trainer.domain.vocabulary import JobKind


class Addresses(BaseModel):
    """Where the other services listen, `host:port`. A warm start needs none; with a controller it reports progress."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectory: str = ""
    gateway: str = ""
    controller: str = ""


class Lora(BaseModel):
    """Low-rank adapter on all linear layers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32


class Job(BaseModel):
    """One job. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    kind: JobKind
    run_id: Annotated[str, Field(min_length=1)]
    incarnation: Annotated[int, Field(ge=1)] = 1
    """Grows with every start of the job; an older one is refused by store and gateway."""
    alias: str = ""
    """Name of the policy; version N is served as `<alias>-v<N>`."""
    seed: int = 0
    addresses: Addresses = Addresses()
    model_dir: Path
    """Hugging Face folder: the initial model of a warm start, or version 0 of the policy."""
    out_dir: Path
    """Checkpoints and policy folders of the run."""
    preset: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Hyper-parameters over those of the preset."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Training steps (rl)."""
    groups_per_step: Annotated[int, Field(ge=0)] = 0
    max_staleness: Annotated[int, Field(ge=0)] = 0
    demonstrations: Path | None = None
    """JSON lines, each `{"messages": [{"role", "content"}, ...]}` (sft)."""
    lora: Lora | None = None
    """Absent: all parameters are trained."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """Optimizer states kept; policy folders are always kept."""

    @model_validator(mode="after")
    def _complete_for_kind(self) -> "Job":
        if self.kind is JobKind.SFT:
            if self.demonstrations is None:
                raise ValueError("an sft job needs demonstrations")
            return self
        missing = [name for name in ("trajectory", "gateway", "controller") if not getattr(self.addresses, name)]
        if missing:
            raise ValueError(f"an rl job needs addresses.{missing[0]}")
        for name in ("alias", "steps", "groups_per_step"):
            if not getattr(self, name):
                raise ValueError(f"an rl job needs {name}")
        return self

    def hyperparameters(self) -> Hyperparameters:
        """Preset and overrides resolved. Raises InvalidSpec."""
        return resolve(self.preset, self.kind, self.overrides)


def parse_job(text: str, name: str) -> Job:
    """A job from JSON text; `name` is for messages. Raises InvalidSpec: broken JSON, unknown key, bad value."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidSpec(f"{name} is not JSON: {error}", field="job") from error
    if not isinstance(raw, dict):
        raise InvalidSpec(f"{name} must hold a JSON object, not {type(raw).__name__}", field="job")
    for key in raw:
        if key not in Job.model_fields:
            raise InvalidSpec(f"{name}: unknown key {key!r}{suggestion(key, Job.model_fields)}", field=key)
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        raise invalid_spec(error) from error
    job.hyperparameters()
    return job
