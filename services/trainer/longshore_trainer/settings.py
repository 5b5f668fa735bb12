"""What the trainer can be told from the environment, beside its job file."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore_common.settings import ServiceSettings, service_config


class EngineKind(StrEnum):
    """Which engine applies gradients."""

    AUTO = "auto"
    """DeepSpeed, or plain torch with a warning where DeepSpeed cannot run."""
    DEEPSPEED = "deepspeed"
    TORCH = "torch"


class TrainerSettings(ServiceSettings):
    """LONGSHORE_TRAINER_*; the shared secret also from LONGSHORE_SECRET."""

    model_config = service_config("LONGSHORE_TRAINER_")

    engine: EngineKind = EngineKind.AUTO
    """Engine; "torch" is for machines where DeepSpeed does not install."""

    zero_stage: Annotated[int, Field(ge=0, le=2)] = 0
    """DeepSpeed ZeRO: 0 keeps all on every rank, 1 shards the optimizer, 2 also gradients. Stages 1 and 2 pay off
    from two ranks on."""

    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads per rank; 0: the machine's cores divided by its ranks."""

    take_wait_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Long poll for a batch, seconds. Also how long Drain may take while no batch comes."""

    patience_s: Annotated[float, Field(ge=0)] = 180.0
    """How long calls to an unavailable service are repeated, seconds: an engine restart takes about a minute."""

    publish_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """Deadline of one PublishPolicy call, seconds: all engines load the version before it answers."""
