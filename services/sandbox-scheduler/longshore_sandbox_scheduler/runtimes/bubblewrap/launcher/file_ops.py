"""File operations inside a sandbox. They run as its root, with its root tree as "/": nothing outside can be named.

All modules are imported before the process enters; see `enter`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
import tarfile
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from longshore_sandbox_scheduler.runtimes.bubblewrap.launcher import syscalls

_BLOCK = 1024 * 1024


class Refused(Exception):
    """The request is wrong; kind is "invalid", "not_found" or "too_large"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def describe(error: OSError) -> str:
    """One line for an error of the file system."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def perform(request: dict[str, Any], data: int) -> dict[str, Any]:
    """Does request["operation"]. Raises Refused, OSError."""
    operation = request["operation"]
    if operation == "upload_file":
        return _upload_file(_checked(request["path"]), request["mode"] or 0o644, data)
    if operation == "upload_tar":
        return _upload_tar(_checked(request["path"]), request["replace"], data)
    if operation == "download":
        return _download(_checked(request["path"]), request["tar"], request["max_bytes"], data)
    if operation == "stat":
        return _stat(_checked(request["path"]))
    if operation == "remove":
        return _remove([_checked(path) for path in request["paths"]])
    if operation == "resolve":
        return {"path": os.path.realpath(_checked(request["path"]))}
    if operation == "make_dirs":
        return _make_dirs(_checked(request["path"]))
    raise Refused("invalid", f"unknown file operation {operation!r}")


def _checked(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise Refused("invalid", f"path {path!r} must be absolute and without '..'")
    return "/" + "/".join(pure.parts[1:])


def _temporary(folder: str) -> str:
    return os.path.join(folder, f".longshore-{secrets.token_hex(8)}")


def _make_dirs(path: str) -> dict[str, Any]:
    os.makedirs(path, exist_ok=True)
    return {}


def _upload_file(path: str, mode: int, data: int) -> dict[str, Any]:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        raise Refused("invalid", f"{path} is a folder; name a file in it")
    temporary = _temporary(folder)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as target:
            size = _copy(data, target)
            os.fchmod(target.fileno(), mode & 0o777)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return {"bytes": size}


def _copy(source: int, target: BinaryIO) -> int:
    total = 0
    while block := os.pread(source, _BLOCK, total):
        target.write(block)
        total += len(block)
    return total


def _upload_tar(path: str, replace: bool, data: int) -> dict[str, Any]:
    if path == "/" and replace:
        raise Refused("invalid", "the root folder cannot be replaced")
    with os.fdopen(os.dup(data), "rb") as source:
        source.seek(0)  # The writer shares the offset.
        members, tar = _checked_members(source)
        _refuse_links_below(path, replace, members)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        staged = _temporary(folder)
        os.mkdir(staged, 0o755)
        try:
            for member in members:
                _extract(tar, member, staged)
            _apply(staged, path, replace)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return {"bytes": source.seek(0, io.SEEK_END)}


def _checked_members(source: BinaryIO) -> tuple[list[tarfile.TarInfo], tarfile.TarFile]:
    try:
        tar = tarfile.open(fileobj=source, mode="r:")  # noqa: SIM115 - the caller reads members from it
        members = tar.getmembers()
    except tarfile.TarError as error:
        raise Refused("invalid", f"the data is not an uncompressed tar: {error}") from error
    links: set[PurePosixPath] = set()
    for member in members:
        entry = PurePosixPath(member.name)
        if entry.is_absolute() or ".." in entry.parts:
            raise Refused("invalid", f"tar entry {member.name!r} leaves the folder")
        if links.intersection((entry, *entry.parents)):
            raise Refused("invalid", f"tar entry {member.name!r} lies behind a link of the same tar")
        if member.issym():
            _check_link(entry, member.linkname)
            links.add(entry)
        elif not (member.isreg() or member.isdir()):
            raise Refused("invalid", f"tar entry {member.name!r} is a device, fifo or hard link")
    for member in members:
        if member.issym():
            _refuse_detour(PurePosixPath(member.name), member.linkname, links)
    return members, tar


def _refuse_detour(entry: PurePosixPath, target: str, links: set[PurePosixPath]) -> None:
    """A ".." behind another link of the tar leads wherever that one leads, not where the text says."""
    at = entry.parent
    for part in PurePosixPath(target).parts:
        if part == "..":
            if links.intersection((at, *at.parents)):
                raise Refused("invalid", f"tar link {str(entry)!r} -> {target!r} goes up behind another link")
            at = at.parent
        else:
            at = at / part


def _check_link(entry: PurePosixPath, target: str) -> None:
    depth = len(entry.parent.parts)
    if PurePosixPath(target).is_absolute():
        raise Refused("invalid", f"tar link {str(entry)!r} -> {target!r} is absolute")
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise Refused("invalid", f"tar link {str(entry)!r} -> {target!r} leaves the folder")


def _refuse_links_below(path: str, replace: bool, members: list[tarfile.TarInfo]) -> None:
    if replace:
        return
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        raise Refused("invalid", f"{path} is not a folder (a link is not followed); ask to replace it")
    for member in members:
        parts = PurePosixPath(member.name).parts
        folders = parts if member.isdir() else parts[:-1]
        for depth in range(1, len(folders) + 1):
            below = os.path.join(path, *folders[:depth])
            if os.path.lexists(below) and (os.path.islink(below) or not os.path.isdir(below)):
                raise Refused("invalid", f"tar entry {member.name!r} passes {below}, which is no folder")
        target = os.path.join(path, *parts)
        if not member.isdir() and os.path.isdir(target) and not os.path.islink(target):
            raise Refused("invalid", f"tar entry {member.name!r} would replace the folder {target}")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    parts = PurePosixPath(member.name).parts
    if not parts:
        return
    target = os.path.join(root, *parts)
    if member.isdir():
        os.makedirs(target, exist_ok=True)
        os.chmod(target, (member.mode & 0o777) | 0o700)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):
        os.unlink(target)
    if member.issym():
        os.symlink(member.linkname, target)
        return
    source = tar.extractfile(member)
    assert source is not None
    with open(target, "wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
        os.fchmod(file.fileno(), member.mode & 0o777)


def _apply(staged: str, path: str, replace: bool) -> None:
    if not os.path.lexists(path):
        os.rename(staged, path)
        return
    if not replace:
        _merge(staged, path)
        return
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        os.rename(staged, path)
        return
    try:
        syscalls.rename_exchange(staged, path)
    except OSError as error:
        # A folder that comes from a lower layer, or a mount point, cannot be renamed.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EBUSY):
            raise
        for name in os.listdir(path):
            _remove_one(os.path.join(path, name))
        _merge(staged, path)


def _merge(staged: str, path: str) -> None:
    for entry in list(os.scandir(staged)):
        target = os.path.join(path, entry.name)
        if entry.is_dir(follow_symlinks=False) and os.path.isdir(target) and not os.path.islink(target):
            _merge(entry.path, target)
        else:
            _move(entry.path, target)


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)


def _download(path: str, tar: bool, max_bytes: int, data: int) -> dict[str, Any]:
    with os.fdopen(os.dup(data), "wb") as sink:
        target = _Bounded(sink, max_bytes, path)
        if tar:
            _write_tar(path, target)
        else:
            _write_file(path, target)
        sink.flush()
        return {"bytes": target.written}


class _Bounded(io.RawIOBase):
    def __init__(self, sink: BinaryIO, limit: int, path: str) -> None:
        super().__init__()
        self._sink, self._limit, self._path = sink, limit, path
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, block: Any) -> int:
        self.written += len(block)
        if self.written > self._limit:
            raise Refused("too_large", f"{self._path} is larger than the {self._limit} bytes that were asked for")
        self._sink.write(block)
        return len(block)


def _open_regular(path: str) -> BinaryIO:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Refused("not_found", f"{path} does not exist in the sandbox") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("invalid", f"{path} is not a regular file")
    return os.fdopen(fd, "rb")


def _write_file(path: str, target: _Bounded) -> None:
    with _open_regular(path) as source:
        while block := source.read(_BLOCK):
            target.write(block)


def _write_tar(path: str, target: _Bounded) -> None:
    if not os.path.lexists(path):
        raise Refused("not_found", f"{path} does not exist in the sandbox")
    if os.path.islink(path) or not os.path.isdir(path):
        raise Refused("invalid", f"{path} is not a folder")
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add_folder(tar, path, "")


def _add_folder(tar: tarfile.TarFile, path: str, prefix: str) -> None:
    for entry in sorted(os.scandir(path), key=lambda found: found.name):
        name = prefix + entry.name
        status = entry.stat(follow_symlinks=False)
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = status.st_mode & 0o777, int(status.st_mtime)
        if entry.is_symlink():
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.path)
            tar.addfile(info)
        elif entry.is_dir(follow_symlinks=False):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            _add_folder(tar, entry.path, name + "/")
        elif stat.S_ISREG(status.st_mode):
            _add_file(tar, info, entry.path)


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> None:
    with _open_regular(path) as source:
        info.size = os.fstat(source.fileno()).st_size
        tar.addfile(info, source)


def _stat(path: str) -> dict[str, Any]:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False}
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {"exists": True, "kind": kind, "size": status.st_size, "mode": stat.S_IMODE(status.st_mode)}


def _remove(paths: list[str]) -> dict[str, Any]:
    if "/" in paths:
        raise Refused("invalid", "the root folder cannot be removed")
    for path in paths:
        _remove_one(path)
    return {}


def _remove_one(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
