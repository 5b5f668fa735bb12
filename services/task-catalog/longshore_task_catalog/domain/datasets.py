"""Datasets: named sets of splits that share no task and never change once frozen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from longshore_common.digests import digest
from longshore_common.errors import Conflict, InvalidSpec
from longshore_task_catalog.domain.model import Dataset

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
_SHOWN = 3


def make_dataset(name: str, splits: Sequence[tuple[str, Sequence[str]]], now_ms: int) -> Dataset:
    """The dataset of these splits.

    Raises:
        InvalidSpec: bad name, no split, empty or repeated split, or a task digest in two places.
    """
    _check_name("dataset", name)
    if not splits:
        raise InvalidSpec(f"dataset {name} has no splits; give at least one", field="splits")
    seen: dict[str, str] = {}
    result: dict[str, tuple[str, ...]] = {}
    for split, digests in splits:
        _check_name("split", split)
        if split in result:
            raise InvalidSpec(f"dataset {name} has two splits named {split}", field="splits")
        if not digests:
            raise InvalidSpec(f"split {split} of dataset {name} has no tasks", field=f"splits.{split}")
        for task in digests:
            if task in seen:
                where = f"twice in split {split}" if seen[task] == split else f"in splits {seen[task]} and {split}"
                raise InvalidSpec(f"task {task} is {where}; splits must not share a task", field=f"splits.{split}")
            seen[task] = split
        result[split] = tuple(sorted(digests))
    return Dataset(name, dataset_digest(result), result, now_ms)


def dataset_digest(splits: Mapping[str, Sequence[str]]) -> str:
    """Digest of the content, without the dataset's name; the order of splits and tasks does not count."""
    return digest({split: sorted(tasks) for split, tasks in splits.items()})


def check_same(frozen: Dataset, wanted: Dataset) -> None:
    """Refuses to give a frozen name another content.

    Raises:
        Conflict: says which splits and tasks differ.
    """
    if frozen.digest == wanted.digest:
        return
    differences = []
    for split in sorted({*frozen.splits, *wanted.splits}):
        old, new = set(frozen.splits.get(split, ())), set(wanted.splits.get(split, ()))
        if old != new:
            differences.append(f"split {split}: " + ", ".join(_changes(old, new)))
    message = f"dataset {frozen.name} is frozen with other content ({'; '.join(differences)}); freeze under a new name"
    raise Conflict(message, details={"name": frozen.name, "frozen": frozen.digest, "wanted": wanted.digest})


def _changes(old: set[str], new: set[str]) -> list[str]:
    parts = []
    for word, digests in (("new", new - old), ("gone", old - new)):
        if digests:
            shown = " ".join(task[:19] for task in sorted(digests)[:_SHOWN])
            parts.append(f"{len(digests)} {word} ({shown}{' ...' if len(digests) > _SHOWN else ''})")
    return parts


def split_reference(reference: str) -> tuple[str, str]:
    """("name", "digest or empty") of "name" or "name@digest"."""
    name, _, wanted = reference.partition("@")
    return name, wanted


def _check_name(kind: str, name: str) -> None:
    if not _NAME.match(name):
        raise InvalidSpec(
            f"{kind} name {name!r} is not allowed: use 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
            field="name",
        )
