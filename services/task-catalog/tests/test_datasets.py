"""Splits share nothing and frozen names keep their content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import Conflict, InvalidSpec
from longshore_task_catalog.domain.datasets import check_same, dataset_digest, make_dataset


def test_order_and_name_do_not_change_the_digest() -> None:
    left = make_dataset("a", [("train", ["t1", "t2"]), ("test", ["t3"])], 1)
    right = make_dataset("b", [("test", ["t3"]), ("train", ["t2", "t1"])], 2)
    assert left.digest == right.digest
    assert left.digest != make_dataset("a", [("train", ["t1", "t2", "t3"])], 1).digest


@pytest.mark.parametrize(
    ("name", "splits", "part"),
    [
        ("d", [], "no splits"),
        ("d", [("train", [])], "no tasks"),
        ("d", [("train", ["t1"]), ("test", ["t1"])], "in splits train and test"),
        ("d", [("train", ["t1", "t1"])], "twice in split train"),
        ("d", [("train", ["t1"]), ("train", ["t2"])], "two splits named train"),
        ("D", [("train", ["t1"])], "dataset name"),
        ("a@b", [("train", ["t1"])], "dataset name"),
        ("d", [("a b", ["t1"])], "split name"),
    ],
)
def test_wrong_datasets_are_refused(name: str, splits: list[tuple[str, list[str]]], part: str) -> None:
    with pytest.raises(InvalidSpec, match=part):
        make_dataset(name, splits, 1)


def test_a_conflict_says_what_differs() -> None:
    frozen = make_dataset("d", [("train", ["t1", "t2"]), ("test", ["t3"])], 1)
    wanted = make_dataset("d", [("train", ["t1", "t4"]), ("dev", ["t5"]), ("test", ["t3"])], 1)
    with pytest.raises(Conflict) as caught:
        check_same(frozen, wanted)
    assert "split train: 1 new (t4), 1 gone (t2)" in caught.value.message
    assert "split dev: 1 new (t5)" in caught.value.message
    assert "test" not in caught.value.message.split("(", 1)[1].split(")")[-1]


TASKS = st.sets(st.integers(0, 9), min_size=1, max_size=5)


@given(TASKS, TASKS)
def test_splits_are_accepted_exactly_when_disjoint(left: set[int], right: set[int]) -> None:
    splits = [("a", [f"t{i}" for i in left]), ("b", [f"t{i}" for i in right])]
    if left & right:
        with pytest.raises(InvalidSpec):
            make_dataset("d", splits, 0)
    else:
        assert make_dataset("d", splits, 0).digest == dataset_digest(dict(splits))
