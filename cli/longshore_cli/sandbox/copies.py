"""Files and folders between here and a sandbox, each checked by digest; whole or not at all."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import shutil
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from longshore_cli.errors import CliError
from longshore_cli.output import TransferProgress
from longshore_common.agent_client import AgentClient
from longshore_common.bundle import unpack_tar_file
from longshore_common.errors import InvalidSpec

_INSIDE = re.compile(r"(?P<sandbox>[A-Za-z0-9][A-Za-z0-9._-]*):(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True)
class Copy:
    """One copy: into the sandbox or out of it."""

    sandbox_id: str
    inside: str
    outside: str
    upload: bool


@dataclass(frozen=True)
class Copied:
    """Where it went and how much it was."""

    source: str
    destination: str
    bytes: int


def parse(source: str, destination: str) -> Copy:
    """Which side is the sandbox. Raises CliError."""
    sides = [_INSIDE.fullmatch(source), _INSIDE.fullmatch(destination)]
    if all(sides) or not any(sides):
        raise CliError(
            f"cp {source} {destination}: exactly one side is in a sandbox, written SANDBOX:/path "
            "(a local name with a colon: ./name)"
        )
    inside = sides[0] or sides[1]
    assert inside is not None
    path = inside["path"]
    if not path.startswith("/") or ".." in path.split("/"):
        raise CliError(f"{inside[0]}: the path in a sandbox must be absolute and without '..'")
    upload = sides[1] is not None
    return Copy(inside["sandbox"], path, source if upload else destination, upload)


async def copy(agent: AgentClient, wanted: Copy, max_bytes: int) -> Copied:
    """Does it. Raises CliError, LongshoreError."""
    return await (_upload(agent, wanted) if wanted.upload else _download(agent, wanted, max_bytes))


# -- into the sandbox


async def _upload(agent: AgentClient, wanted: Copy) -> Copied:
    source = Path(wanted.outside)
    if not source.exists():
        raise CliError(f"{source}: no such file or folder")
    target = await _target_inside(agent, wanted.inside, source)
    if source.is_dir():
        size = await _upload_folder(agent, source, target)
    elif source.is_file():
        mode = stat.S_IMODE(source.stat().st_mode)
        with _opened(source) as file:
            size = await agent.upload_from(target, file, mode=mode, progress=TransferProgress("sent"))
    else:
        raise CliError(f"{source}: neither a file nor a folder")
    return Copied(str(source), f"{wanted.sandbox_id}:{target}", size)


def _opened(source: Path) -> BinaryIO:
    try:
        return source.open("rb")
    except OSError as error:
        raise CliError(f"{source}: {error.strerror or error}") from error


async def _target_inside(agent: AgentClient, path: str, source: Path) -> str:
    """As cp does it: into a folder that exists, else under the name given."""
    plain = posixpath.normpath(path)
    found = await agent.stat(plain)
    if found.kind == "symlink":
        # An upload replaces a link; whoever names one means what it points to.
        raise CliError(f"{plain} is a link in the sandbox: name the file or folder that it points to")
    if found.kind == "dir" or path.endswith("/"):
        return posixpath.join(plain, source.absolute().name)
    return plain


async def _upload_folder(agent: AgentClient, source: Path, target: str) -> int:
    with tempfile.TemporaryFile() as file:
        try:
            await asyncio.to_thread(_pack, source, file)
        except OSError as error:
            raise CliError(f"{error.filename or source}: {error.strerror or error}") from error
        return await agent.upload_from(target, file, tar=True, progress=TransferProgress("sent"))


def _pack(source: Path, file: BinaryIO) -> None:
    """Files, folders and links with their permission bits; times and owners stay here."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder, folders, names in os.walk(source):
            folders.sort()
            for name in sorted([*folders, *names]):
                _add(tar, Path(folder, name), source)


def _add(tar: tarfile.TarFile, path: Path, root: Path) -> None:
    status = path.lstat()
    info = tarfile.TarInfo(path.relative_to(root).as_posix())
    info.mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
        with path.open("rb") as content:
            tar.addfile(info, content)
    else:
        raise CliError(f"{path}: neither file, folder nor link; it cannot be copied")


# -- out of the sandbox


async def _download(agent: AgentClient, wanted: Copy, max_bytes: int) -> Copied:
    source = posixpath.normpath(wanted.inside)
    found = await agent.stat(source)
    if not found.exists:
        raise CliError(f"{wanted.sandbox_id}:{source}: no such file or folder")
    target = _target_here(wanted.outside, posixpath.basename(source) or wanted.sandbox_id)
    if found.kind == "dir":
        size = await _download_folder(agent, source, target, max_bytes)
    else:
        mode = found.mode if found.kind == "file" else 0o644
        size = await _download_file(agent, source, target, mode, max_bytes)
    return Copied(f"{wanted.sandbox_id}:{source}", str(target), size)


def _target_here(path: str, name: str) -> Path:
    target = Path(path)
    if target.is_dir() or path.endswith("/"):
        target /= name
    if not target.parent.is_dir():
        raise CliError(f"{target.parent}: no such folder; make it first")
    return target


async def _download_file(agent: AgentClient, source: str, target: Path, mode: int, max_bytes: int) -> int:
    if target.is_dir():
        raise CliError(f"{target} is a folder here, and {source} is a file")
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            size = await agent.download_to(source, file, max_bytes=max_bytes, progress=TransferProgress("received"))
        # Neither setuid nor writable for others: the sandbox chose these bits.
        os.chmod(name, mode & 0o755 | 0o600)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return size


async def _download_folder(agent: AgentClient, source: str, target: Path, max_bytes: int) -> int:
    if target.exists():
        raise CliError(f"{target} exists here; remove it, or copy to another name")
    staged = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with tempfile.TemporaryFile(dir=staged) as file:
            size = await agent.download_to(
                source, file, max_bytes=max_bytes, tar=True, progress=TransferProgress("received")
            )
            file.seek(0)
            await asyncio.to_thread(_unpack, file, staged / "content", source)
        os.replace(staged / "content", target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return size


def _unpack(file: BinaryIO, folder: Path, source: str) -> None:
    try:
        unpack_tar_file(file, folder)
    except InvalidSpec as error:
        raise CliError(f"{source} is not copied: {error.message}") from error
