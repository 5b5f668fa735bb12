"""An agent's state as data: its working folder, taken out of one sandbox and put into another.

The archive is the agent's work and hostile: entries that an upload would refuse (devices, links that leave the folder)
are left out of it. Links that leave the folder are made again by `ln`, so that a virtual environment still grades.
"""

import asyncio
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from longshore_common.errors import InvalidSpec
from longshore_common.sandbox_exec import SandboxAgent

FALLBACK_FOLDER = "/app"
_LINKS_PER_COMMAND = 200
_LINK_SCRIPT = 'while [ "$#" -gt 1 ]; do ln -sfn -- "$1" "$2" || exit 1; shift 2; done'


@dataclass(frozen=True)
class ExportedState:
    """Folder, its content as a tar that can be uploaded, and the links (target, path) to be made beside it."""

    folder: str
    tar: bytes
    links: tuple[tuple[str, str], ...]


async def take_state(agent: SandboxAgent, workdir: str, max_bytes: int) -> ExportedState | None:
    """The agent's working folder; None when the task's folder is the root, which is not exported.

    Raises LongshoreError: the folder is gone, is too large, or the sandbox is.
    """
    folder = workdir or FALLBACK_FOLDER
    if PurePosixPath(folder) == PurePosixPath("/"):
        return None
    found = await agent.stat(folder)
    if found.kind != "dir":
        raise InvalidSpec(f"{folder} is {found.kind or 'gone'}, not a folder", field=folder)
    archive = await agent.download(folder, tar=True, max_bytes=max_bytes)
    tar, links = await asyncio.to_thread(separate_links, archive, folder)
    return ExportedState(folder, tar, links)


async def restore_state(agent: SandboxAgent, state: ExportedState, owner: str) -> None:
    """Replaces the folder's content in a fresh sandbox and gives it to owner ("" is root). Raises LongshoreError."""
    await agent.upload(state.folder, state.tar, tar=True, replace=True)
    for start in range(0, len(state.links), _LINKS_PER_COMMAND):
        pairs = [part for link in state.links[start : start + _LINKS_PER_COMMAND] for part in link]
        await agent.exec(["sh", "-c", _LINK_SCRIPT, "sh", *pairs], timeout_s=60, cwd="/")
    if owner not in ("", "root", "0"):
        await agent.exec(["chown", "-R", "--no-dereference", owner, state.folder], timeout_s=60, cwd="/")


def separate_links(archive: bytes, folder: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Splits a tar into one with files, folders and inner links, and the links that leave the folder.

    Blocking. Raises InvalidSpec when it is no tar. Devices, pipes, hard links (the agent sends their content as files)
    and entries outside the folder are dropped.
    """
    kept, links = io.BytesIO(), []
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=kept, mode="w") as target:
            for member in source.getmembers():
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not path.parts:
                    continue
                if member.issym() and _leaves(path.parent.parts, member.linkname):
                    links.append((member.linkname, f"{folder}/{path}"))
                else:
                    _copy(source, target, member)
    except tarfile.TarError as error:
        raise InvalidSpec(f"the export of {folder} is not a tar: {error}", field=folder) from error
    return kept.getvalue(), tuple(links)


def _copy(source: tarfile.TarFile, target: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if member.isreg():
        target.addfile(member, source.extractfile(member))
    elif member.isdir() or member.issym():
        target.addfile(member)


def _leaves(parents: Sequence[str], link: str) -> bool:
    """Whether a link in the folder `parents` (relative to the root of the archive) points outside of it."""
    if link.startswith("/"):
        return True
    depth = len(parents)
    for part in PurePosixPath(link).parts:
        depth = depth - 1 if part == ".." else depth + 1
        if depth < 0:
            return True
    return False
