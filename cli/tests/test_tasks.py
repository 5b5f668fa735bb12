"""Task folders and splits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_cli.errors import CliError
from longshore_cli.tasks import make_splits, read_splits, task_folders


def _task(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text("")
    return folder


def test_a_task_or_a_folder_of_tasks(tmp_path: Path) -> None:
    b, a = _task(tmp_path / "b"), _task(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    assert task_folders(tmp_path) == [a, b]
    assert task_folders(a) == [a]


def test_a_broken_task_is_still_a_task(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "instruction.md").write_text("do")
    assert task_folders(tmp_path / "t") == [tmp_path / "t"]


@pytest.mark.parametrize("name", ["none", "empty"])
def test_no_tasks_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CliError):
        task_folders(tmp_path / name)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 5))
def test_splits_are_disjoint_and_repeatable(skills: int, each: int, seed: int) -> None:
    tasks = [(f"sha256:{s}-{i}", f"skill{s}") for s in range(skills) for i in range(each)]
    shares = {"train": 0.5, "dev": 0.25, "test": 0.25}
    splits = make_splits(tasks, shares, seed)
    members = [digest for split in splits.values() for digest in split]
    assert sorted(members) == sorted(digest for digest, _ in tasks)
    assert len(members) == len(set(members))
    assert splits == make_splits(list(reversed(tasks)), shares, seed)


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(CliError, match="at most 1 together"):
        make_splits([("a", "")], {"train": 0.8, "test": 0.3}, 1)


@pytest.mark.parametrize("text", ["[1, 2]", "train: a", "train: [1]", "{}", "a: [", ""])
def test_a_wrong_splits_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(CliError, match=r"s\.yaml is not"):
        read_splits(tmp_path / "s.yaml")


def test_a_splits_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("train: [a, b]\ntest: [c]\n")
    assert read_splits(tmp_path / "s.yaml") == {"train": ["a", "b"], "test": ["c"]}
