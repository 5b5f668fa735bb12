"""How vLLM is started: the same for a child of the gateway and for an engine host."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, Field


class Device(StrEnum):
    """What an engine computes on."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


class EngineSettings(BaseModel):
    """Mixed into the settings of the gateway (LONGSHORE_INFERENCE_GATEWAY_ENGINE_*) and of engine hosts."""

    engine_device: Device = Device.AUTO
    """auto: what the installed vLLM was built for."""

    engine_tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of one engine; the model is split over them."""

    engine_gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of each GPU's memory for weights and KV cache. GPU only."""

    engine_dtype: str = ""
    """Type of weights and activations, e.g. bfloat16; empty: the model's own, from its config.json."""

    engine_enforce_eager: bool | None = None
    """No compilation and no CUDA graphs; none: on the CPU only."""

    engine_max_model_len: int = Field(default=512, ge=0)
    """Tokens, prompt and completion together; the model's own limit if that is less, or if this is 0. Bounds the KV
    cache per call."""

    engine_max_num_seqs: int = Field(default=64, ge=1)
    """Calls that an engine runs at once; the gateway sends it no more, so that waiting happens where it is measured."""

    engine_max_num_batched_tokens: int = Field(default=2048, ge=1)
    """Tokens per engine step."""

    engine_max_loras: int = Field(default=2, ge=1)
    """LoRA versions in one engine step; slots in the weights."""

    engine_max_cpu_loras: int = Field(default=8, ge=2)
    """LoRA versions that an engine holds; more than engine_max_loras are swapped in as calls need them."""

    engine_max_lora_rank: int = 16
    """Largest LoRA rank; vLLM allows 1, 8, 16, 32, 64, 128, 256, 320, 512."""

    engine_kv_cache_gib: int = Field(default=1, ge=1)
    """GiB for the KV cache of an engine on the CPU."""

    engine_threads: int = Field(default=1, ge=1)
    """Compute threads of an engine on the CPU: on few cores the gateway, sandboxes and trainer need the others."""

    engine_extra_arguments: tuple[str, ...] = ()
    """Further vLLM arguments (JSON list in the environment); they come last and win."""

    engine_prestart: bool = False
    """Start a vLLM process before a model is known: imports take most of an engine's start."""

    engine_start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds until a starting engine counts as failed."""

    engine_drain_s: int = Field(default=0, ge=0)
    """Seconds that calls in flight get when an engine is told to end; 0: they are aborted."""

    engine_connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to connect to an engine, and for its health route."""

    engine_call_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that one generation may take."""

    engine_admin_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds to load or unload an adapter."""
