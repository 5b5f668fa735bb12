"""Which PEFT adapters an engine's LoRA can serve exactly; the others must be merged and published as full weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore_common.errors import InvalidSpec


def check_adapter(config: Mapping[str, Any], max_rank: int) -> None:
    """Checks an adapter_config.json.

    Raises:
        InvalidSpec: naming the key that cannot be served.
    """
    if config.get("peft_type") != "LORA":
        raise _cannot("peft_type", f"it is {config.get('peft_type')!r}, only LORA is served")
    for key, why in (
        ("use_dora", "DoRA is not served by vLLM's LoRA"),
        ("modules_to_save", "fully trained modules are not part of a LoRA"),
        ("trainable_token_indices", "trained embeddings are not served by vLLM's LoRA"),
        ("lora_bias", "trained biases are not served by vLLM's LoRA"),
        ("layer_replication", "replicated layers are not served by vLLM's LoRA"),
    ):
        if config.get(key):
            raise _cannot(key, why)
    if config.get("bias", "none") != "none":
        raise _cannot("bias", "trained biases are not served by vLLM's LoRA")
    _check_rank(config, max_rank)


def _check_rank(config: Mapping[str, Any], max_rank: int) -> None:
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise _cannot("r", f"the rank is {rank!r}")
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise _cannot(key, "ranks and alphas per module are not served by vLLM's LoRA")
    if rank > max_rank:
        raise _cannot("r", f"rank {rank} is more than the engine's {max_rank}; raise engine_max_lora_rank")


def check_tensors(names: list[str]) -> None:
    """Checks the tensor names of adapter_model.safetensors.

    Raises:
        InvalidSpec: it holds something that is not a LoRA factor of a linear layer.
    """
    for name in names:
        if "lora_embedding" in name or "embed_tokens" in name or "lm_head" in name:
            raise _cannot("target_modules", f"{name}: trained embeddings are not served by vLLM's LoRA")
        if not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise _cannot("target_modules", f"{name} is not a LoRA factor")


def _cannot(key: str, why: str) -> InvalidSpec:
    return InvalidSpec(
        f"the adapter cannot be served as LoRA: {key}: {why}; merge it and publish full weights", field=f"adapter.{key}"
    )
