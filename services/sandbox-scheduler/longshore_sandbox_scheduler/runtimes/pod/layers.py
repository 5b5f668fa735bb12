"""The files that a task's Dockerfile copies, as one tar per environment: it is put over the base image at the claim."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

from longshore_common.errors import InvalidSpec, NotFound
from longshore_sandbox_scheduler.domain.dockerfile import Copy, Dockerfile, MakeFolder
from longshore_sandbox_scheduler.runtimes.copy_plan import DOCKERFILE, LayerWriter, line_named, plan_copy

MIB = 1024 * 1024
_RELATIVE = "COPY to a relative place needs a WORKDIR line above it: the base image's own is not known here"


def needs_layer(file: Dockerfile) -> bool:
    """Whether it brings files, or folders other than the last WORKDIR and those above (which the agent makes)."""
    return any(
        isinstance(step, Copy) or (isinstance(step, MakeFolder) and not _at_or_above(step.path, file.workdir))
        for step in file.steps
    )


def _at_or_above(folder: str, path: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def make_layer(file: Dockerfile, context: Path, max_bytes: int) -> bytes:
    """The tar of what COPY and WORKDIR of a file without RUN bring; the same files give the same bytes.

    What the base image holds is not known here: a COPY of one file onto a folder of the base must say so by a '/'.

    Raises:
        InvalidSpec: a step that cannot be honoured, with its line; more than max_bytes.
    """
    if (context / ".dockerignore").exists():
        raise InvalidSpec(
            "environment/.dockerignore is not supported here; remove it", field="environment/.dockerignore"
        )
    with tempfile.TemporaryDirectory(prefix="longshore-layer-") as folder:
        base, layer = Path(folder, "base"), Path(folder, "layer")
        base.mkdir()
        layer.mkdir()
        writer = LayerWriter(base, layer)
        below_workdir = False
        for step in file.steps:
            with line_named(step.line):
                if isinstance(step, MakeFolder):
                    below_workdir = True
                    writer.make_folder(step.path)
                elif isinstance(step, Copy):
                    if step.relative and not below_workdir:
                        raise InvalidSpec(_RELATIVE)
                    writer.write(plan_copy(step, context, writer.is_folder(step.destination)), step.mode)
        _check_size(layer, max_bytes)
        return _pack(layer)


def _check_size(layer: Path, max_bytes: int) -> None:
    size = sum(path.lstat().st_size for path in layer.rglob("*") if path.is_file())
    if size > max_bytes:
        raise InvalidSpec(
            f"its COPY steps bring {size // MIB} MiB, more than the {max_bytes // MIB} MiB that are put into each "
            "pod at its claim (pods.images.max_layer_mb)",
            field=DOCKERFILE,
        )


def _pack(layer: Path) -> bytes:
    """Names are relative to the root, owners are root, times zero. Folders come by what they hold, or empty."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(layer.rglob("*"), key=lambda path: os.fsencode(path.relative_to(layer))):
            info = tarfile.TarInfo(str(path.relative_to(layer)))
            info.mode = path.lstat().st_mode & 0o777
            if path.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(info)
            elif not path.is_dir():
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)
            elif not any(path.iterdir()):
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
    return buffer.getvalue()


MakeLayer = Callable[[], Awaitable[bytes]]


class Layers:
    """Tars by digest, made once per environment; beyond a bound the least recently used ones are made again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tars: OrderedDict[str, bytes] = OrderedDict()
        self._digests: dict[str, str] = {}
        self._make: dict[str, MakeLayer] = {}
        self._lock = asyncio.Lock()

    async def find(self, environment: str, make: MakeLayer) -> tuple[str, bool]:
        """Digest of an environment's layer, and whether it was made by this call."""
        if environment in self._digests:
            return self._digests[environment], False
        # One at a time: they are small, and a thousand claims of a fresh run ask at once.
        async with self._lock:
            if environment in self._digests:
                return self._digests[environment], False
            tar = await make()
            found = _digest(tar)
            self._make[found] = make
            self._digests[environment] = found
            self._keep(found, tar)
            return found, True

    async def tar(self, layer: str) -> bytes:
        """The bytes of a layer. Raises NotFound when `find` never gave it."""
        # Without the lock where it is there: another one that is being made must not hold up claims.
        if layer not in self._tars:
            async with self._lock:
                if layer not in self._tars:
                    if layer not in self._make:
                        raise NotFound(f"no layer {layer} was made here")
                    self._keep(layer, await self._make[layer]())
        self._tars.move_to_end(layer)
        return self._tars[layer]

    def _keep(self, layer: str, tar: bytes) -> None:
        self._tars[layer] = tar
        held = sum(len(one) for one in self._tars.values())
        while held > self._max_bytes and len(self._tars) > 1:
            held -= len(self._tars.popitem(last=False)[1])


def _digest(tar: bytes) -> str:
    return "sha256:" + hashlib.sha256(tar).hexdigest()
