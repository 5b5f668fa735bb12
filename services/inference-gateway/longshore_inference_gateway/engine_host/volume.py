"""Model folders on the volume that gateway and engines share."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.models import ServedBase

_Look = tuple[tuple[str, int, int], ...]


class SharedVolume:
    """A ModelFolders. A folder is read once, and again only when its files look different."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, _Look]] = {}

    async def verify(self, base: ServedBase) -> None:
        """Raises InvalidSpec: not there, or not of that digest."""
        await asyncio.to_thread(self._verify, base)

    def _verify(self, base: ServedBase) -> None:
        folder = Path(base.folder)
        if not folder.is_absolute():
            raise InvalidSpec(f"uri {folder} must be an absolute folder", field="uri")
        if not folder.is_dir():
            raise InvalidSpec(
                f"the engine host does not see {folder}: gateway and engines must mount the same volume at the same "
                "path",
                field="uri",
            )
        look = _look(folder)
        if self._known.get(base.folder) == (base.digest, look):
            return
        found = tree_digest(folder)
        if found != base.digest:
            raise InvalidSpec(
                f"{folder} has digest {found} on the engine host, not {base.digest}: it changed, or the host mounts "
                "another volume there",
                field="digest",
            )
        self._known[base.folder] = (base.digest, look)


def _look(folder: Path) -> _Look:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((str(path), status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()])
