"""Models, demonstrations and checkpoints in folders of this machine. Hashing runs in threads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore_common.chatml import ChatMLCodec
from longshore_common.digests import digest_file, tree_digest
from longshore_common.errors import InvalidSpec
from longshore_controller.domain.plan import ModelIdentity

_NEEDED = ("config.json",)


class LocalArtifacts:
    """`Artifacts`: base_dir for relative paths, checkpoints_dir/<run id> for what a run makes."""

    def __init__(self, base_dir: Path, checkpoints_dir: Path) -> None:
        self._base_dir = base_dir.absolute()
        self._checkpoints_dir = checkpoints_dir.absolute()

    def resolve(self, path: str) -> Path:
        return self._base_dir / path

    def out_dir(self, run_id: str) -> Path:
        return self._checkpoints_dir / run_id

    async def model_identity(self, folder: Path) -> ModelIdentity:
        return await asyncio.to_thread(_model_identity, folder)

    async def file_digest(self, path: Path) -> str:
        if not await asyncio.to_thread(path.is_file):
            raise InvalidSpec(
                f"warm_start.demonstrations: {path} is not a file; write it first (JSON lines with messages)",
                field="warm_start.demonstrations",
            )
        return await asyncio.to_thread(digest_file, path)

    async def base_complete(self, run_id: str) -> bool:
        # The trainer renames the finished folder into place, so it is whole or absent.
        return await asyncio.to_thread((self.out_dir(run_id) / "v0" / "config.json").is_file)

    async def tree_digest(self, folder: Path) -> str:
        return await asyncio.to_thread(tree_digest, folder)


def _model_identity(folder: Path) -> ModelIdentity:
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise InvalidSpec(
            f"model.path: {folder} has no {', '.join(missing)}; give a Hugging Face model folder", field="model.path"
        )
    codec = ChatMLCodec.from_dir(folder)
    return ModelIdentity(
        base_digest=tree_digest(folder), tokenizer_digest=codec.tokenizer_digest, template_digest=codec.template_digest
    )
