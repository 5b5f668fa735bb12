"""Content digests: values by canonical JSON, bytes, files, folders.

A tree digest covers, for every file in byte order of its path: path, executable or not, kind (file or symlink), size,
and SHA-256 of the content or of the link target. Folders without files do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from longshore_common.errors import InvalidSpec


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces. NaN and infinities are refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_bytes(data: bytes) -> str:
    """sha256: and hex of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest(value: object) -> str:
    """Digest of a JSON value. Pass it through its pydantic model first: 1 and 1.0 differ here."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Digest of a file's content, read in blocks."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def walk_files(root: Path) -> Iterator[str]:
    """Relative POSIX paths of all files and symlinks under root (symlinked folders are not entered), unsorted."""
    stack = [""]
    while stack:
        prefix = stack.pop()
        with os.scandir(root / prefix if prefix else root) as entries:
            for entry in entries:
                relative = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    stack.append(relative + "/")
                else:
                    yield relative


def tree_digest(root: Path, include: Callable[[str], bool] | None = None) -> str:
    """Digest of a folder's files, or of those whose relative POSIX path `include` accepts.

    Raises:
        InvalidSpec: root is no folder, or holds a socket, device or other special file.
    """
    if not root.is_dir():
        raise InvalidSpec(f"cannot digest {root}: it is not a folder", field=str(root))
    total = hashlib.sha256()
    chosen = (path for path in walk_files(root) if include is None or include(path))
    for relative in sorted(chosen, key=os.fsencode):
        total.update(canonical_json(_entry(root / relative, relative)))
        total.update(b"\n")
    return "sha256:" + total.hexdigest()


def _entry(path: Path, relative: str) -> list[object]:
    if path.is_symlink():
        target = os.fsencode(path.readlink())
        return [relative, False, "symlink", len(target), hashlib.sha256(target).hexdigest()]
    if not path.is_file():
        raise InvalidSpec(f"cannot digest {path}: neither file nor symlink; remove it", field=relative)
    status = path.stat()
    return [relative, bool(status.st_mode & 0o111), "file", status.st_size, digest_file(path)]
