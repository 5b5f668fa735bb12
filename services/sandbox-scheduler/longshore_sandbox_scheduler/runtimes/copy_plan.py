"""COPY: which files of the build context go where, and writing them into a layer without starting anything."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.dockerfile import Copy

DOCKERFILE = "environment/Dockerfile"
_MAX_LINKS = 40


@dataclass(frozen=True)
class Entry:
    """One file, link or empty folder of the context, and its absolute place in the image."""

    source: Path
    destination: str


class ContextError(Exception):
    """A COPY that cannot be done; the caller adds the line."""


@contextlib.contextmanager
def line_named(line: int) -> Iterator[None]:
    """Errors of this block say which line of the Dockerfile they come from."""
    where = f"{DOCKERFILE}:{line}"
    try:
        yield
    except ContextError as error:
        raise InvalidSpec(f"{where}: COPY: {error}", field=where) from error
    except InvalidSpec as error:
        raise InvalidSpec(f"{where}: {error.message}", field=where) from error


def plan_copy(step: Copy, context: Path, destination_is_folder: bool) -> list[Entry]:
    """Entries of a COPY in a fixed order.

    Raises:
        ContextError: a source matches nothing or leaves the context.
    """
    matches = [match for pattern in step.sources for match in _matches(context, pattern)]
    into_folder = step.into_folder or destination_is_folder or len(matches) > 1
    entries: list[Entry] = []
    for match in matches:
        if match.is_dir():
            entries.extend(_folder(match, step.destination))
        elif match == context:
            raise ContextError("the context is no folder")
        else:
            place = _under(step.destination, match.name) if into_folder else step.destination
            entries.append(Entry(_inside(context, match), place))
    return entries


def _under(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _inside(context: Path, path: Path) -> Path:
    resolved = path.resolve()
    if not resolved.is_relative_to(context.resolve()):
        raise ContextError(f"{path.name} is a link out of the build context")
    return resolved


def _matches(context: Path, pattern: str) -> list[Path]:
    parts = [part for part in PurePosixPath(pattern.lstrip("/")).parts if part != "."]
    if ".." in parts:
        raise ContextError(f"{pattern} leaves the build context")
    found = [context]
    for part in parts:
        below = [(folder, name) for folder in found if folder.is_dir() for name in sorted(os.listdir(folder))]
        if any(sign in part for sign in "*?["):
            found = [folder / name for folder, name in below if fnmatch.fnmatchcase(name, part)]
        else:
            found = [folder / name for folder, name in below if name == part]
    if not found:
        raise ContextError(f"{pattern} matches nothing in environment/")
    return found


def _folder(root: Path, destination: str) -> list[Entry]:
    entries = [Entry(root, destination)]
    for child in sorted(root.iterdir()):
        place = _under(destination, child.name)
        if child.is_dir() and not child.is_symlink():
            entries.extend(_folder(child, place))
        else:
            entries.append(Entry(child, place))
    return entries


class LayerWriter:
    """Writes into a layer as its merged view with the base would take it: links of either are followed inside."""

    def __init__(self, base: Path, layer: Path) -> None:
        self._trees = (layer, base)
        self._layer = layer

    def _find(self, relative: str) -> Path | None:
        for tree in self._trees:
            path = tree / relative
            if os.path.lexists(path):
                return path
        return None

    def resolve(self, path: str) -> str:
        """The path relative to the root, without links. Raises InvalidSpec on a loop."""
        done: list[str] = []
        todo = list(reversed([part for part in path.split("/") if part not in ("", ".")]))
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            found = self._find("/".join([*done, part]))
            if found is None or not found.is_symlink():
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise InvalidSpec(f"too many links on the way to {path}", field=path)
            target = os.readlink(found)
            if target.startswith("/"):
                done = []
            todo.extend(reversed([piece for piece in target.split("/") if piece not in ("", ".")]))
        return "/".join(done)

    def is_folder(self, path: str) -> bool:
        """Whether the merged view has a folder there."""
        found = self._find(self.resolve(path))
        return found is not None and found.is_dir()

    def make_folder(self, path: str) -> str:
        """Makes a folder and those above; existing ones keep their mode. Gives the resolved relative path.

        Raises:
            InvalidSpec: a file is in the way.
        """
        relative = self.resolve(path)
        parts = relative.split("/") if relative else []
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            found = self._find(part)
            if found is not None and not found.is_dir():
                raise InvalidSpec(f"/{part} is a file, not a folder", field=path)
            own = self._layer / part
            if found is None or found != own:
                own.mkdir()
                own.chmod(stat.S_IMODE(found.stat().st_mode) if found is not None else 0o755)
        return relative

    def write(self, entries: Sequence[Entry], mode: int | None) -> None:
        """Copies the entries. Raises InvalidSpec."""
        for entry in entries:
            if entry.source.is_dir() and not entry.source.is_symlink():
                self.make_folder(entry.destination)
                continue
            folder, _, name = entry.destination.rpartition("/")
            target = self._layer / self.make_folder(folder or "/") / name
            if target.is_dir() and not target.is_symlink():
                raise InvalidSpec(f"{entry.destination} is a folder; COPY cannot replace it", field=entry.destination)
            _copy_one(entry.source, target, mode)


def file_mode(source: Path, mode: int | None) -> int:
    """Permission bits of a copied file: as asked, else as in the context."""
    return mode if mode is not None else stat.S_IMODE(source.stat().st_mode) & 0o777


def _copy_one(source: Path, target: Path, mode: int | None) -> None:
    target.unlink(missing_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return
    shutil.copyfile(source, target)
    target.chmod(file_mode(source, mode))
