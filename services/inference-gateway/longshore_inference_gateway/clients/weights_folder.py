"""Weights in folders: HF models and PEFT adapters."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

from longshore_common.chatml import ChatMLCodec
from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.adapter import check_adapter, check_tensors
from longshore_inference_gateway.domain.models import ModelIdentity
from longshore_inference_gateway.domain.ports import Codec

_WEIGHT_NAMES = ("config.json",)
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json")


class FolderWeights:
    """Reads weights folders. Renders with ChatML; other dialects are other codecs behind the same Protocol."""

    async def read_base(self, uri: str, digest: str) -> tuple[Codec, ModelIdentity]:
        """Codec and identity of a HF model folder whose tree digest must be `digest`."""
        return await asyncio.to_thread(_read_base, Path(uri), digest)

    async def check_adapter(self, uri: str, digest: str, max_rank: int) -> None:
        """Verifies a PEFT adapter folder."""
        await asyncio.to_thread(_check_adapter, Path(uri), digest, max_rank)


def is_weight_file(path: str) -> bool:
    """Whether a file of a model folder belongs to the base weights: the config and the tensors, not the tokenizer."""
    return path in _WEIGHT_NAMES or path.endswith(_WEIGHT_SUFFIXES)


def _read_base(folder: Path, digest: str) -> tuple[Codec, ModelIdentity]:
    _verify(folder, digest)
    if not (folder / "config.json").is_file():
        raise InvalidSpec(f"{folder} is no HF model folder: config.json is missing", field="uri")
    codec = ChatMLCodec.from_dir(folder)
    base = tree_digest(folder, include=is_weight_file)
    return codec, ModelIdentity(base, codec.tokenizer_digest, codec.template_digest)


def _verify(folder: Path, digest: str) -> None:
    if not folder.is_absolute():
        raise InvalidSpec(f"uri {folder} must be an absolute folder", field="uri")
    found = tree_digest(folder)
    if found != digest:
        raise InvalidSpec(
            f"{folder} has digest {found}, not {digest}: it changed, or another was meant", field="digest"
        )


def _check_adapter(folder: Path, digest: str, max_rank: int) -> None:
    _verify(folder, digest)
    config = _read_json(folder / "adapter_config.json")
    check_adapter(config, max_rank)
    check_tensors(_tensor_names(folder / "adapter_model.safetensors"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field="uri") from error
    if not isinstance(value, dict):
        raise InvalidSpec(f"{path} must hold a JSON object", field="uri")
    return value


def _tensor_names(path: Path) -> list[str]:
    """Names in a safetensors header: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
    except (OSError, ValueError, struct.error) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field="uri") from error
    return [name for name in header if name != "__metadata__"]
