"""Artifacts that users put where run specs name them: their names, and who uses them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from longshore_common.errors import Conflict, InvalidSpec

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_PARTS = 8
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ArtifactKind(StrEnum):
    """What an artifact is on disk."""

    FILE = "file"
    TREE = "tree"


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact that is there. digest: of the bytes of a file, of the tree of a folder."""

    name: str
    kind: ArtifactKind
    digest: str
    bytes: int
    files: int
    put_at_ms: int


@dataclass(frozen=True)
class ArtifactHeader:
    """What a caller says that it sends. Raises InvalidSpec for a name or digest that cannot be meant."""

    name: str
    kind: ArtifactKind
    digest: str

    def __post_init__(self) -> None:
        check_name(self.name)
        if not _DIGEST.fullmatch(self.digest):
            raise InvalidSpec(f"digest is {self.digest!r}; expected sha256: and 64 hex digits", field="digest")


def check_name(name: str) -> None:
    """Raises InvalidSpec: it is absolute, leaves the folder of artifacts, or hides in it."""
    parts = name.split("/")
    if len(parts) > _MAX_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidSpec(
            f"{name!r} is no name for an artifact: up to {_MAX_PARTS} parts divided by '/', each of letters, digits, "
            "'.', '_' and '-', starting with a letter or digit (demo/model)",
            field="name",
        )


def check_apart(name: str, others: Iterable[str]) -> None:
    """Raises Conflict: one of two artifacts would lie inside the other."""
    for other in others:
        if name.startswith(f"{other}/") or other.startswith(f"{name}/"):
            raise Conflict(
                f"artifact {name} and {other} would lie in each other: choose another name, or remove {other} first",
                details={"artifact": other},
            )


def check_unused(name: str, users: Sequence[str], doing: str) -> None:
    """Raises Conflict: runs that have not ended use it."""
    if users:
        raise Conflict(
            f"artifact {name} is used by {', '.join(users)}, which has not ended: {doing} it afterwards, stop the run, "
            "or use another name",
            details={"artifact": name, "run": users[0]},
        )


def uses(place: Path, used: Iterable[str | None]) -> bool:
    """Whether one of the absolute paths is the artifact's place or lies in it."""
    return any(path is not None and Path(path).is_relative_to(place) for path in used)
