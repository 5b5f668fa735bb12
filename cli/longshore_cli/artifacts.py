"""Pushing files and folders to the controller: packed as they are read, checked there by digest."""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore.controller.v1 import controller_pb2 as pb
from longshore_cli.errors import CliError
from longshore_common.digests import digest_file, tree_digest, walk_files
from longshore_common.errors import LongshoreError
from longshore_common.grpc_client import mapped

_CHUNK_BYTES = 1024 * 1024
_BLOCK = 512
_TIMEOUT_S = 600.0
_SLOWEST_BYTES_PER_S = 1024 * 1024
"""A push slower than this beyond its first minutes is given up; the controller checks it all at the end."""


@dataclass(frozen=True)
class Pushed:
    """What is there now, and whether this push changed it."""

    artifact: Any
    changed: bool


async def push(stub: Any, local: Path, name: str, progress: Callable[[int], None] | None = None) -> Pushed:
    """Puts a file or folder under a name of the controller. progress hears the bytes sent so far.

    Raises:
        CliError: no such file or folder, or it changes while it is read.
        LongshoreError: what the controller raised.
    """
    try:
        header, size = await asyncio.to_thread(_header, local, name)
    except OSError as error:
        raise _unreadable(local, error) from error
    blocks = _file(local, size) if header.kind == pb.ARTIFACT_KIND_FILE else _tar(local)
    requests = _Requests(header, blocks, progress)
    try:
        answer = await mapped(stub.PutArtifact(aiter(requests), timeout=_TIMEOUT_S + size / _SLOWEST_BYTES_PER_S))
    except (LongshoreError, asyncio.CancelledError):
        if isinstance(requests.broken, OSError):
            raise _unreadable(local, requests.broken) from requests.broken
        if requests.broken is not None:
            raise requests.broken from None
        raise
    return Pushed(answer.artifact, answer.changed)


def _unreadable(local: Path, error: OSError) -> CliError:
    return CliError(f"{error.filename or local}: {error.strerror or error}")


def _header(local: Path, name: str) -> tuple[pb.ArtifactHeader, int]:
    if local.is_dir():
        size = sum((local / path).lstat().st_size for path in walk_files(local))
        return pb.ArtifactHeader(name=name, kind=pb.ARTIFACT_KIND_TREE, digest=tree_digest(local)), size
    if not local.is_file():
        raise CliError(f"{local}: no such file or folder" if not local.exists() else f"{local}: no file and no folder")
    size = local.stat().st_size
    return pb.ArtifactHeader(name=name, kind=pb.ARTIFACT_KIND_FILE, digest=digest_file(local)), size


class _Requests:
    """The messages of a push. gRPC only cancels a call whose messages break off, so the reason is kept here."""

    def __init__(
        self, header: pb.ArtifactHeader, blocks: Iterator[bytes], progress: Callable[[int], None] | None
    ) -> None:
        self._header = header
        self._blocks = blocks
        self._progress = progress
        self.broken: CliError | OSError | None = None

    async def __aiter__(self) -> AsyncIterator[pb.PutArtifactRequest]:
        yield pb.PutArtifactRequest(header=self._header)
        sent = 0
        try:
            while block := await asyncio.to_thread(next, self._blocks, b""):
                yield pb.PutArtifactRequest(data=block)
                sent += len(block)
                if self._progress is not None:
                    self._progress(sent)
        except (CliError, OSError) as error:
            self.broken = error
            raise


def _file(path: Path, size: int) -> Iterator[bytes]:
    """Exactly so many bytes. Raises CliError when there are fewer."""
    left = size
    with path.open("rb") as file:
        while left:
            block = file.read(min(left, _CHUNK_BYTES))
            if not block:
                raise CliError(f"{path} became shorter while it was read; push it again")
            left -= len(block)
            yield block


def _tar(root: Path) -> Iterator[bytes]:
    """A folder's files and links as an uncompressed tar, without a copy of it on disk."""
    for relative in sorted(walk_files(root), key=os.fsencode):
        path = root / relative
        status = path.lstat()
        info = tarfile.TarInfo(relative)
        info.mode = 0o755 if status.st_mode & 0o111 else 0o644
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            yield info.tobuf(tarfile.PAX_FORMAT)
            continue
        info.size = status.st_size
        yield info.tobuf(tarfile.PAX_FORMAT)
        yield from _file(path, info.size)
        if info.size % _BLOCK:
            yield b"\0" * (_BLOCK - info.size % _BLOCK)
    yield b"\0" * (2 * _BLOCK)
