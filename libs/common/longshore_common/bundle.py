"""A folder as one deterministic tar (zstd): the same files give the same bytes."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import zstandard

from longshore_common.digests import walk_files
from longshore_common.errors import InvalidSpec

MAX_BUNDLE_BYTES = 256 * 1024 * 1024


def pack_tar(root: Path, include: Callable[[str], bool] | None = None) -> bytes:
    """Uncompressed tar of the folder's files and symlinks; times and owners are zeroed, modes are 0644 or 0755."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        chosen = [path for path in walk_files(root) if include is None or include(path)]
        for relative in sorted(chosen, key=os.fsencode):
            _add(tar, root / relative, relative)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: Path, relative: str) -> None:
    info = tarfile.TarInfo(relative)
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(info)
        return
    if not stat.S_ISREG(mode):
        raise InvalidSpec(f"cannot pack {path}: neither file nor symlink; remove it", field=relative)
    data = path.read_bytes()
    info.size = len(data)
    info.mode = 0o755 if mode & 0o111 else 0o644
    tar.addfile(info, io.BytesIO(data))


def pack_folder(root: Path, include: Callable[[str], bool] | None = None) -> bytes:
    """The folder as tar.zst."""
    if not root.is_dir():
        raise InvalidSpec(f"cannot pack {root}: it is not a folder", field=str(root))
    return zstandard.ZstdCompressor(level=3).compress(pack_tar(root, include))


def decompress(data: bytes) -> bytes:
    """tar.zst to tar, bounded by MAX_BUNDLE_BYTES.

    Raises:
        InvalidSpec: not zstd, or larger than the bound.
    """
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as reader:
            plain: bytes = reader.read(MAX_BUNDLE_BYTES + 1)
    except zstandard.ZstdError as error:
        raise InvalidSpec(f"the bundle is not zstd: {error}") from error
    if len(plain) > MAX_BUNDLE_BYTES:
        raise InvalidSpec(f"the bundle is larger than {MAX_BUNDLE_BYTES} bytes unpacked")
    return plain


def _checked_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidSpec(f"bundle entry {name!r} leaves the folder", field=name)
    return path


def _check_link(name: str, target: str) -> None:
    parts = list(PurePosixPath(name).parent.parts)
    if PurePosixPath(target).is_absolute():
        raise InvalidSpec(f"bundle link {name!r} -> {target!r} is absolute", field=name)
    for part in PurePosixPath(target).parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise InvalidSpec(f"bundle link {name!r} -> {target!r} leaves the folder", field=name)


def unpack_tar(plain: bytes, dest: Path) -> None:
    """Unpacks a tar into dest (created).

    Refuses "..", absolute paths, escaping links, hard links and devices before anything is written (InvalidSpec).
    """
    unpack_tar_file(io.BytesIO(plain), dest)


def unpack_tar_file(file: BinaryIO, dest: Path) -> None:
    """Like `unpack_tar`, from an open file that is read entry by entry."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            members = tar.getmembers()
            _check_members(members)
            dest.mkdir(parents=True, exist_ok=True)
            for member in members:
                _extract(tar, member, dest)
    except tarfile.TarError as error:
        raise InvalidSpec(f"the bundle is not a tar: {error}") from error


def _check_members(members: Sequence[tarfile.TarInfo]) -> None:
    links = set()
    for member in members:
        path = _checked_path(member.name)
        if any(str(parent) in links for parent in path.parents):
            raise InvalidSpec(f"bundle entry {member.name!r} lies behind a link", field=member.name)
        if member.issym():
            _check_link(member.name, member.linkname)
            links.add(str(path))
        elif not (member.isreg() or member.isdir()):
            raise InvalidSpec(f"bundle entry {member.name!r} is a device, fifo or hard link", field=member.name)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, dest: Path) -> None:
    target = dest / _checked_path(member.name)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
        return
    source = tar.extractfile(member)
    assert source is not None
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o755 if member.mode & 0o111 else 0o644)


def unpack(data: bytes, dest: Path) -> None:
    """Unpacks a tar.zst made by `pack_folder`."""
    unpack_tar(decompress(data), dest)
