"""What vLLM is told, on the CPU and on GPUs."""

import importlib
import json
from pathlib import Path

import pytest

from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.clients import vllm_options
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_door import Door
from longshore_inference_gateway.engine_settings import Device, EngineSettings


def _base(folder: Path, **config: object) -> ServedBase:
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "torch.bfloat16"} | config))
    return ServedBase("demo-v0", str(folder), "sha256:0")


def _value(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_the_cpu_gets_whole_prompts_and_no_compilation(tmp_path: Path) -> None:
    settings = EngineSettings(engine_device=Device.CPU, engine_max_model_len=4096, engine_max_num_batched_tokens=512)
    found = vllm_options.arguments(settings, _base(tmp_path, max_position_embeddings=2048), "127.0.0.1", 8000)
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= set(found)
    assert _value(found, "--max-num-batched-tokens") == _value(found, "--max-model-len") == "2048"
    assert "--tensor-parallel-size" not in found
    environment = vllm_options.environment(settings, tmp_path, None)
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"


def test_gpus_get_graphs_chunked_prefill_and_nothing_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = EngineSettings(
        engine_device=Device.GPU, engine_tensor_parallel_size=4, engine_gpu_memory_utilization=0.8
    )
    found = vllm_options.arguments(settings, _base(tmp_path), "0.0.0.0", 8000)
    assert "--enforce-eager" not in found
    assert "--no-enable-chunked-prefill" not in found
    assert _value(found, "--tensor-parallel-size") == "4"
    assert _value(found, "--gpu-memory-utilization") == "0.8"
    assert _value(found, "--dtype") == "bfloat16"
    environment = vllm_options.environment(settings, tmp_path, None)
    assert not [
        key for key in environment if key.startswith("VLLM_CPU") or key in ("TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS")
    ]
    eager = settings.model_copy(update={"engine_enforce_eager": True})
    assert "--enforce-eager" in vllm_options.arguments(eager, _base(tmp_path), "0.0.0.0", 8000)


def test_the_context_is_the_smaller_limit_and_left_to_vllm_when_nobody_says(tmp_path: Path) -> None:
    unlimited = EngineSettings(engine_max_model_len=0)
    assert "--max-model-len" not in vllm_options.arguments(unlimited, _base(tmp_path), "h", 1)
    own = _base(tmp_path, max_position_embeddings=77)
    assert _value(vllm_options.arguments(unlimited, own, "h", 1), "--max-model-len") == "77"
    assert _value(vllm_options.arguments(EngineSettings(), _base(tmp_path), "h", 1), "--max-model-len") == "512"


def test_weights_keep_their_type_unless_told(tmp_path: Path) -> None:
    """vLLM's "auto" turns float32 into bfloat16."""
    base = _base(tmp_path, torch_dtype="torch.float32")
    assert _value(vllm_options.arguments(EngineSettings(), base, "h", 1), "--dtype") == "float32"
    told = EngineSettings(engine_dtype="float16")
    assert _value(vllm_options.arguments(told, base, "h", 1), "--dtype") == "float16"


def test_every_route_is_behind_the_door_and_calls_in_flight_may_end(tmp_path: Path) -> None:
    found = vllm_options.arguments(EngineSettings(engine_drain_s=20), _base(tmp_path), "0.0.0.0", 8000)
    module, _, name = _value(found, "--middleware").rpartition(".")
    assert getattr(importlib.import_module(module), name) is Door
    assert _value(found, "--shutdown-timeout") == "20"


def test_extra_arguments_come_last(tmp_path: Path) -> None:
    settings = EngineSettings(engine_extra_arguments=("--max-num-seqs", "7"))
    assert vllm_options.arguments(settings, _base(tmp_path), "h", 1)[-2:] == ["--max-num-seqs", "7"]


def test_the_child_gets_a_writable_home_a_user_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setenv("LONGSHORE_SECRET", "s")
    environment = vllm_options.environment(EngineSettings(), tmp_path, "key")
    assert environment["HOME"] == str(tmp_path)
    assert environment["USER"]
    assert environment["VLLM_API_KEY"] == "key"
    assert environment["VLLM_SERVER_DEV_MODE"] == "0"
    assert "LONGSHORE_SECRET" not in environment
    monkeypatch.setenv("VLLM_API_KEY", "another")
    assert vllm_options.environment(EngineSettings(), tmp_path, None)["VLLM_API_KEY"] == ""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vllm_options.environment(EngineSettings(), tmp_path / "other", None)["HOME"] == str(tmp_path)


def test_a_folder_without_a_config_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"cannot read .*config\.json"):
        vllm_options.arguments(EngineSettings(), ServedBase("demo-v0", str(tmp_path), "d"), "h", 1)
