"""Artifacts as files and folders below base_dir, with a small record of each beside them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from longshore_common.bundle import unpack_tar_file
from longshore_common.clock import Clock
from longshore_common.digests import digest_file, tree_digest, walk_files
from longshore_common.errors import Conflict, InvalidSpec, QuotaExceeded
from longshore_controller.domain.artifacts import ArtifactHeader, ArtifactKind, StoredArtifact

_OWN = ".longshore-artifacts"
_MIB = 1024 * 1024


class FolderArtifactStore:
    """`ArtifactStore`. Only one process writes; what an earlier one left half received goes with the first call."""

    def __init__(self, base_dir: Path, clock: Clock, max_bytes: int) -> None:
        self._base_dir = base_dir.absolute()
        self._records = self._base_dir / _OWN / "records"
        self._incoming = self._base_dir / _OWN / "incoming"
        self._clock = clock
        self._max_bytes = max_bytes
        self._swept = False

    @contextlib.asynccontextmanager
    async def received(self, header: ArtifactHeader, data: AsyncIterator[bytes]) -> AsyncIterator[StoredArtifact]:
        """See the port."""
        await asyncio.to_thread(self._prepare)
        await asyncio.to_thread(self._check_free, header.name)
        folder = self._incoming / secrets.token_hex(8)
        try:
            with _disk_named(folder):
                await asyncio.to_thread(folder.mkdir)
                with (folder / "data").open("wb") as file:
                    await self._take(header, data, file)
                size, files = await asyncio.to_thread(_check, header, folder, self._max_bytes)
            # Its name is that of the folder until `place`.
            yield StoredArtifact(folder.name, header.kind, header.digest, size, files, self._clock.now_ms())
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _prepare(self) -> None:
        if not self._swept:
            shutil.rmtree(self._incoming, ignore_errors=True)
            self._swept = True
        for folder in (self._records, self._incoming):
            folder.mkdir(parents=True, exist_ok=True)

    async def _take(self, header: ArtifactHeader, data: AsyncIterator[bytes], file: BinaryIO) -> None:
        size = 0
        async for block in data:
            size += len(block)
            if size > self._max_bytes:
                raise QuotaExceeded(
                    f"artifact {header.name} is larger than {self._max_bytes // _MIB} MiB; raise the controller's "
                    "max_artifact_mb, or put it on the shared volume yourself",
                    which="artifact",
                )
            await asyncio.to_thread(file.write, block)

    async def place(self, name: str, received: StoredArtifact) -> StoredArtifact:
        """See the port."""
        return await asyncio.to_thread(self._place, name, received)

    def _place(self, name: str, received: StoredArtifact) -> StoredArtifact:
        self._check_free(name)
        target, folder = self._base_dir / name, self._incoming / received.name
        stored = replace(received, name=name)
        with _disk_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            # In this order a crash leaves it absent, never with the record of other content.
            if os.path.lexists(target):
                os.rename(target, folder / "before")
            (folder / "record").write_text(json.dumps(asdict(stored)) + "\n")
            os.replace(folder / "record", self._record(name))
            os.rename(folder / "content", target)
        return stored

    def _check_free(self, name: str) -> None:
        target = self._base_dir / name
        if os.path.lexists(target) and not self._record(name).exists():
            raise Conflict(
                f"{target} is there and was not pushed as an artifact: choose another name", details={"artifact": name}
            )

    def _record(self, name: str) -> Path:
        return self._records / (name.replace("/", "@") + ".json")

    async def all(self) -> list[StoredArtifact]:
        """See the port."""
        return await asyncio.to_thread(self._all)

    def _all(self) -> list[StoredArtifact]:
        found = []
        for path in self._records.glob("*.json"):
            value = json.loads(path.read_text())
            one = StoredArtifact(**{**value, "kind": ArtifactKind(value["kind"])})
            # Somebody may have removed it by hand.
            if (self._base_dir / one.name).exists():
                found.append(one)
        return sorted(found, key=lambda one: one.name)

    async def remove(self, name: str) -> None:
        """See the port."""
        await asyncio.to_thread(self._remove, name)

    def _remove(self, name: str) -> None:
        target = self._base_dir / name
        trash = self._incoming / secrets.token_hex(8)
        self._prepare()
        self._record(name).unlink(missing_ok=True)
        if os.path.lexists(target):
            os.rename(target, trash)
        if trash.is_dir():
            shutil.rmtree(trash, ignore_errors=True)
        else:
            trash.unlink(missing_ok=True)
        for folder in list(Path(name).parents)[:-1]:
            with contextlib.suppress(OSError):
                (self._base_dir / folder).rmdir()


def _check(header: ArtifactHeader, folder: Path, max_bytes: int) -> tuple[int, int]:
    """Makes the content of the data; its bytes and number of files. Raises InvalidSpec, QuotaExceeded."""
    data, content = folder / "data", folder / "content"
    if header.kind is ArtifactKind.FILE:
        os.rename(data, content)
        content.chmod(0o644)
        found, sizes = digest_file(content), [content.stat().st_size]
    else:
        with data.open("rb") as file:
            _check_unpacked_size(header, file, max_bytes)
            file.seek(0)
            unpack_tar_file(file, content)
        data.unlink()
        found, sizes = tree_digest(content), [(content / name).lstat().st_size for name in walk_files(content)]
    if found != header.digest:
        raise InvalidSpec(
            f"artifact {header.name}: what came has digest {found}, the header says {header.digest}; nothing was "
            "changed, push it again",
            field="digest",
        )
    return sum(sizes), len(sizes)


def _check_unpacked_size(header: ArtifactHeader, file: BinaryIO, max_bytes: int) -> None:
    """A sparse entry says more than it brings."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            size = sum(member.size for member in tar)
    except tarfile.TarError as error:
        raise InvalidSpec(f"artifact {header.name}: the data is no uncompressed tar: {error}", field="data") from error
    if size > max_bytes:
        raise QuotaExceeded(f"artifact {header.name} unpacks to more than {max_bytes // _MIB} MiB", which="artifact")


@contextlib.contextmanager
def _disk_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise Conflict(f"{path}: a file is in the way ({error.filename}): choose another name") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise QuotaExceeded(f"no space for {path}: free some, or enlarge the volume", which="disk") from error
