"""Adapters that vLLM's LoRA would serve wrongly are refused."""

from pathlib import Path
from typing import Any

import pytest
from gateway_tiny_model import make_adapter_files

from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.clients.weights_folder import FolderWeights, is_weight_file
from longshore_inference_gateway.domain.adapter import check_adapter, check_tensors

GOOD = {"peft_type": "LORA", "r": 8, "bias": "none", "use_dora": False, "modules_to_save": None, "rank_pattern": {}}


def test_a_plain_lora_is_served() -> None:
    check_adapter(GOOD, 16)
    check_tensors(["m.q_proj.lora_A.weight", "m.q_proj.lora_B.weight"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1]),
        ("bias", "all"),
        ("lora_bias", True),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("layer_replication", [[0, 2]]),
        ("r", 17),
        ("r", None),
        ("peft_type", "LOHA"),
    ],
)
def test_what_cannot_be_served_is_named(key: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_adapter(GOOD | {key: value}, 16)
    assert caught.value.field == f"adapter.{key}"


@pytest.mark.parametrize(
    "name",
    ["m.embed_tokens.lora_embedding_A", "m.lm_head.lora_A.weight", "m.q_proj.lora_magnitude_vector", "m.norm.weight"],
)
def test_other_tensors_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        check_tensors([name])


async def test_folder_must_be_the_digest_that_was_promised(tmp_path: Path) -> None:
    folder = make_adapter_files(tmp_path / "a", marker=1)
    digest = tree_digest(folder)
    await FolderWeights().check_adapter(str(folder), digest, 16)
    (folder / "adapter_model.safetensors").write_bytes(b"\x02" * 200)
    with pytest.raises(InvalidSpec, match="has digest"):
        await FolderWeights().check_adapter(str(folder), digest, 16)
    with pytest.raises(InvalidSpec, match="cannot read"):
        await FolderWeights().check_adapter(str(folder), tree_digest(folder), 16)


def test_the_tokenizer_is_not_part_of_the_base_digest() -> None:
    names = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json", "README.md"]
    assert [name for name in names if is_weight_file(name)] == names[:3]
