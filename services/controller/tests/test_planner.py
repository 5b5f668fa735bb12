from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import LongshoreError
from longshore_controller.domain.planner import (
    BrokenSlot,
    dev_due,
    next_training_groups,
    panel_groups,
    slots_open,
)
from longshore_controller.domain.seeds import derive_seed, epoch_order, task_at

from .builders import a_shape


@given(st.integers(0, 2**31 - 1), st.integers(1, 20), st.integers(0, 5))
def test_each_epoch_has_every_task_once(seed: int, count: int, epoch: int) -> None:
    tasks = [f"t{i}" for i in range(count)]
    drawn = [task_at(tasks, seed, epoch * count + i) for i in range(count)]
    assert sorted(drawn) == sorted(tasks)
    assert drawn == epoch_order(list(reversed(tasks)), seed, epoch)


def test_order_depends_on_seed_and_epoch() -> None:
    tasks = [f"t{i}" for i in range(20)]
    assert epoch_order(tasks, 1, 0) != epoch_order(tasks, 2, 0)
    assert epoch_order(tasks, 1, 0) != epoch_order(tasks, 1, 1)


def test_seed_values_are_stable_across_machines() -> None:
    assert derive_seed(1, "train", 0, 0, 0) == derive_seed(1, "train", 0, 0, 0)
    assert 0 <= derive_seed(1, "x") < 2**31


def test_nemo_rl_3599_each_prompt_once_with_groups_in_flight() -> None:
    """NeMo-RL #3599: an asynchronous cursor skipped prompts in flight; 8 prompts, 4 in flight, all come once."""
    shape = a_shape(steps=4, groups_per_step=2, max_staleness=1)
    seen: list[str] = []
    ordinal = 0
    for committed in range(shape.steps):
        groups = next_training_groups(shape, committed, ordinal, [])
        seen += [group.task_digest for group in groups]
        ordinal += len(groups)
    assert Counter(seen) == Counter(shape.tasks)


@pytest.mark.parametrize("resume_at", [0, 1, 2, 3])
def test_verl_5725_7401_resume_at_the_end_of_an_epoch_trains_on(resume_at: int) -> None:
    """verl #5725, #7401: 4 rows, batch 2, saved at step 2 (an epoch's end): the resumed run trained 0 steps."""
    shape = a_shape(tasks=("a", "b", "c", "d"), steps=4)
    whole = [next_training_groups(shape, step, 2 * step, []) for step in range(4)]
    resumed = [next_training_groups(shape, step, 2 * step, []) for step in range(resume_at, 4)]
    assert resumed == whole[resume_at:]
    assert all(len(groups) == 2 for groups in resumed)


def test_planning_again_gives_the_same_groups() -> None:
    shape = a_shape()
    assert next_training_groups(shape, 0, 0, []) == next_training_groups(shape, 0, 0, [])


def test_window_is_committed_plus_one_plus_staleness() -> None:
    assert slots_open(a_shape(max_staleness=0), 0) == 2
    assert slots_open(a_shape(max_staleness=1), 0) == 4
    assert slots_open(a_shape(max_staleness=8), 0) == 8
    assert next_training_groups(a_shape(), 0, 2, []) == []
    assert [g.step for g in next_training_groups(a_shape(), 1, 2, [])] == [2, 2]


def test_refill_keeps_slot_and_step_and_then_takes_another_task() -> None:
    shape = a_shape()
    own = task_at(shape.tasks, shape.seed, 1)
    (first,) = next_training_groups(shape, 0, 2, [BrokenSlot(1, 0)])
    (second,) = next_training_groups(shape, 0, 2, [BrokenSlot(1, 1)])
    assert (first.group_id, first.ordinal, first.step, first.refill) == ("run-1-t000001-r1", 1, 1, 1)
    assert first.task_digest == own
    assert second.task_digest != own
    assert set(first.seeds).isdisjoint(second.seeds)


def test_a_slot_that_cannot_be_filled_ends_the_run() -> None:
    with pytest.raises(LongshoreError, match="slot 1 got 3 refills"):
        next_training_groups(a_shape(), 0, 2, [BrokenSlot(1, 3)])


def test_paired_panels_have_the_same_seeds_per_task_and_sample() -> None:
    base = panel_groups("run-1", 5, "test:base", "test", ["b", "a"], 2, 0)
    final = panel_groups("run-1", 5, "test:final", "test", ["a", "b"], 2, 9)
    assert [(g.task_digest, g.seeds) for g in base] == [(g.task_digest, g.seeds) for g in final]
    assert {g.pinned_version for g in final} == {9}
    assert not {g.group_id for g in base} & {g.group_id for g in final}
    assert len({seed for g in base for seed in g.seeds}) == 4


def test_dev_panels_while_training() -> None:
    assert [step for step in range(16) if dev_due(step, 5, 15)] == [0, 5, 10]
    assert not any(dev_due(step, 0, 15) for step in range(16))
