"""Digest, ownership and removal of root trees."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longshore_common.digests import canonical_json, digest_file

_OPAQUE = "user.overlay.opaque"


def layer_digest(root: Path) -> str:
    """Digest of a root tree: like a task's tree digest, and also folders, all permission bits and overlay marks.

    Owners and times do not count: they differ between machines.
    """
    total = hashlib.sha256()
    for relative in sorted(_walk(root), key=os.fsencode):
        total.update(canonical_json(_entry(root, relative)))
        total.update(b"\n")
    return "sha256:" + total.hexdigest()


def _walk(root: Path) -> list[str]:
    found: list[str] = []
    stack = [""]
    while stack:
        prefix = stack.pop()
        with os.scandir(root / prefix if prefix else root) as entries:
            for entry in entries:
                found.append(prefix + entry.name)
                if entry.is_dir(follow_symlinks=False):
                    stack.append(prefix + entry.name + "/")
    return found


def _entry(root: Path, relative: str) -> list[Any]:
    path = root / relative
    status = path.lstat()
    mode, name = stat.S_IMODE(status.st_mode), os.fsencode(relative).decode(errors="backslashreplace")
    if stat.S_ISLNK(status.st_mode):
        return [name, "symlink", os.fsencode(os.readlink(path)).hex()]
    if stat.S_ISDIR(status.st_mode):
        return [name, "folder", mode, _opaque(path)]
    if stat.S_ISREG(status.st_mode):
        return [name, "file", mode, status.st_size, digest_file(path)]
    return [name, "special", stat.S_IFMT(status.st_mode), status.st_rdev]


def _opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, _OPAQUE) == b"y"
    except OSError:
        return False


def own_tree(root: Path, uid: int | None) -> None:
    """Gives every entry to uid (None: leaves them ours). Set-uid bits are kept."""
    if uid is None:
        return
    os.chown(root, uid, uid)
    for relative in _walk(root):
        path = root / relative
        status = path.lstat()
        os.chown(path, uid, uid, follow_symlinks=False)
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISLNK(status.st_mode):
            path.chmod(stat.S_IMODE(status.st_mode))


def tree_bytes(root: Path) -> int:
    """Disk space of a tree; what vanishes meanwhile or cannot be read is left out."""
    total = 0
    stack = [str(root)]
    while stack:
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
    return total


def remove_tree(root: Path) -> None:
    """Removes a tree that hostile code wrote: folders without permissions too; absent is no error."""

    def retry(function: Callable[..., Any], path: str, error: Any) -> None:
        kind = error[1]
        if isinstance(kind, FileNotFoundError):
            return
        if isinstance(kind, PermissionError):
            with contextlib.suppress(OSError):
                os.chmod(os.path.dirname(path), 0o700)
                if os.path.isdir(path) and not os.path.islink(path):
                    os.chmod(path, 0o700)
                    shutil.rmtree(path, ignore_errors=True)
                    return
                function(path)

    shutil.rmtree(root, onerror=retry)


def replace_folder(temporary: Path, final: Path) -> bool:
    """Moves a finished folder to its place; False when another process was first, then ours is removed."""
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        remove_tree(temporary)
        return False
    return True
