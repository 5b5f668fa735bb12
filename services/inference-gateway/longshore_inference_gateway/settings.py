"""What the inference gateway can be told."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from longshore_common.settings import ServiceSettings, service_config


class EngineMode(StrEnum):
    """Where engines come from."""

    LOCAL = "local"
    EXTERNAL = "external"


class Settings(ServiceSettings):
    """Environment: LONGSHORE_INFERENCE_GATEWAY_*, and LONGSHORE_SECRET."""

    model_config = service_config("LONGSHORE_INFERENCE_GATEWAY_")

    http_address: str = "127.0.0.1:0"
    """host:port of the data port that harnesses call. Port 0: any free one."""

    advertised_url: str | None = None
    """Base of the URL that harnesses are told, e.g. http://10.0.0.7:7403; none: http://<http_address>."""

    trajectory_address: str = "127.0.0.1:7406"
    """host:port of the trajectory store, where every turn is appended."""

    append_attempts: int = 5
    """How often an append is tried before the call fails: short outages of the store should not cost an attempt."""

    append_timeout_s: float = 20.0
    """Seconds for one append."""

    session_ttl_s: float = 3600.0
    """Seconds that a token works when OpenSession does not say."""

    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body; an agent is not trusted to be reasonable."""

    queue_limit: int = 1024
    """Calls that may wait for an engine; more are answered 429."""

    queue_timeout_s: float = 120.0
    """Seconds that a call may wait for an engine."""

    engine_call_timeout_s: float = 300.0
    """Seconds that one generation may take."""

    engine_connect_timeout_s: float = 5.0
    """Seconds to connect to an engine, and for its health route."""

    engine_admin_timeout_s: float = 120.0
    """Seconds to load or unload an adapter."""

    engine_dead_after_s: float = 60.0
    """Seconds without a good health answer after which an external engine counts as lost: busy ones answer late."""

    engine_probe_s: float = 2.0
    """Seconds between health questions to external engines; local ones are watched as processes."""

    engine_mode: EngineMode = EngineMode.LOCAL
    """local: vLLM as a child on this machine's CPUs. external: engine_addresses."""

    engine_addresses: tuple[str, ...] = ()
    """host:port of external engines (JSON list in the environment). Each must serve <alias>-v0."""

    engine_prestart: bool = False
    """Start a vLLM process with the gateway, before a model is known: imports take most of an engine's start."""

    engine_start_timeout_s: float = 300.0
    """Seconds until a starting engine counts as failed."""

    engine_log_dir: str | None = None
    """Folder for logs of engines; none: data_dir/logs."""

    engine_max_model_len: int = 512
    """Tokens, prompt and completion together; the model's own limit if that is less. Bounds the KV cache per call."""

    engine_max_num_seqs: int = 64
    """Calls that an engine runs at once; the gateway sends it no more, so that waiting happens where it is measured."""

    engine_max_num_batched_tokens: int = 2048
    """Tokens per engine step."""

    engine_max_loras: int = 2
    """LoRA versions in one engine step; slots in the weights."""

    engine_max_cpu_loras: int = Field(default=8, ge=2)
    """LoRA versions that an engine holds; more than engine_max_loras are swapped in as calls need them."""

    engine_max_lora_rank: int = 16
    """Largest LoRA rank; vLLM allows 1, 8, 16, 32, 64, 128, 256, 320, 512."""

    engine_kv_cache_gib: int = 1
    """GiB for the KV cache of a local engine."""

    engine_threads: int = 1
    """Compute threads of a local engine: on few cores the gateway, sandboxes and trainer need the others."""

    engine_extra_arguments: tuple[str, ...] = ()
    """Further vLLM arguments for local engines (JSON list in the environment)."""
