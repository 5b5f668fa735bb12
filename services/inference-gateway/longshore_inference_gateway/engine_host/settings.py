"""What an engine host can be told."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import AliasChoices, AliasGenerator, Field
from pydantic_settings import SettingsConfigDict

from longshore_common.settings import ServiceSettings, service_config
from longshore_inference_gateway.engine_settings import EngineSettings

_PREFIX = "LONGSHORE_ENGINE_HOST_"


def _names(field: str) -> AliasChoices:
    # engine_max_num_seqs is LONGSHORE_ENGINE_HOST_MAX_NUM_SEQS: the prefix says "engine" already.
    return AliasChoices(field, _PREFIX + field.removeprefix("engine_").upper())


class Settings(EngineSettings, ServiceSettings):
    """Environment: LONGSHORE_ENGINE_HOST_* (without `ENGINE_` again), and LONGSHORE_SECRET."""

    model_config = SettingsConfigDict(
        **service_config(_PREFIX), alias_generator=AliasGenerator(validation_alias=_names)
    )

    http_address: str = "127.0.0.1:0"
    """host:port where vLLM listens; in a pod 0.0.0.0:8000. Port 0: any free one."""

    data_dir: Path = Path(tempfile.gettempdir()) / "longshore-engine"
    """Orders for the child, and its caches where HOME cannot be written."""

    engine_max_model_len: int = Field(default=0, ge=0)
    """Tokens, prompt and completion together; 0: the model's own limit."""

    engine_prestart: bool = True
    """Keep a process with vLLM imported while no model is served: an order is then carried out in seconds."""

    engine_drain_s: int = Field(default=20, ge=0)
    """Seconds that calls in flight get when the pod ends; its termination grace period must be 10 s longer at least."""

    engine_start_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds until a starting engine counts as failed; big models are read from a shared volume."""
