"""Which groups to create next. Pure: the same run, seed and progress give the same groups, with the same ids.

A training **slot** is one place for a group in one step: slot o belongs to step o // groups_per_step + 1 and to the
task that the seeded epoch order puts there. A group that cannot be trained on is replaced in its slot by a refill, so
that every slot is trained on exactly once, whatever was in flight when a process died.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longshore_common.errors import Internal, LongshoreError
from longshore_controller.domain.seeds import derive_seed, task_at
from longshore_controller.domain.vocabulary import Purpose

BASE_PANEL = "test:base"
FINAL_PANEL = "test:final"
SAME_TASK_REFILLS = 1
"""A slot's first refill has its own task; later ones another, in case the task itself cannot run here."""


@dataclass(frozen=True)
class GroupPlan:
    """A group to create."""

    group_id: str
    run_id: str
    purpose: Purpose
    task_digest: str
    seeds: tuple[int, ...]
    """One per attempt."""
    min_scored: int
    ordinal: int
    step: int = 0
    refill: int = 0
    """0: planned; n: the slot's n-th replacement."""
    panel: str = ""
    pinned_version: int | None = None

    @property
    def size(self) -> int:
        """Attempts in the group."""
        return len(self.seeds)

    def attempt_ids(self) -> list[str]:
        """`<group_id>-<index>`."""
        return [f"{self.group_id}-{index}" for index in range(self.size)]


@dataclass(frozen=True)
class TrainingShape:
    """What the planner needs of a run."""

    run_id: str
    seed: int
    tasks: tuple[str, ...]
    steps: int
    groups_per_step: int
    group_size: int
    min_scored: int
    max_staleness: int
    max_refills: int


@dataclass(frozen=True)
class BrokenSlot:
    """A slot whose newest group cannot be trained on."""

    ordinal: int
    refill: int


def slots_open(shape: TrainingShape, committed_step: int) -> int:
    """How many slots may exist: those of every step s <= committed_step + 1 + max_staleness."""
    return shape.groups_per_step * min(shape.steps, committed_step + 1 + shape.max_staleness)


def next_training_groups(
    shape: TrainingShape, committed_step: int, next_ordinal: int, broken: Sequence[BrokenSlot]
) -> list[GroupPlan]:
    """Refills for broken slots, then new slots up to the staleness window.

    Raises:
        LongshoreError: a slot used up its refills; the run cannot go on.
    """
    refills = [_training_group(shape, slot.ordinal, slot.refill + 1) for slot in broken]
    fresh = [_training_group(shape, ordinal, 0) for ordinal in range(next_ordinal, slots_open(shape, committed_step))]
    return refills + fresh


def _training_group(shape: TrainingShape, ordinal: int, refill: int) -> GroupPlan:
    if refill > shape.max_refills:
        raise _refills_used_up(shape, ordinal)
    group_id = f"{shape.run_id}-t{ordinal:06d}" + (f"-r{refill}" if refill else "")
    return GroupPlan(
        group_id=group_id,
        run_id=shape.run_id,
        purpose=Purpose.TRAIN,
        task_digest=_slot_task(shape, ordinal, refill),
        seeds=tuple(derive_seed(shape.seed, "train", ordinal, refill, i) for i in range(shape.group_size)),
        min_scored=shape.min_scored,
        ordinal=ordinal,
        step=ordinal // shape.groups_per_step + 1,
        refill=refill,
    )


def _slot_task(shape: TrainingShape, ordinal: int, refill: int) -> str:
    own = task_at(shape.tasks, shape.seed, ordinal)
    others = [task for task in sorted(shape.tasks) if task != own]
    if refill <= SAME_TASK_REFILLS or not others:
        return own
    return others[derive_seed(shape.seed, "substitute", ordinal, refill) % len(others)]


def _refills_used_up(shape: TrainingShape, ordinal: int) -> LongshoreError:
    return Internal(
        f"run {shape.run_id}: training slot {ordinal} got {shape.max_refills} refills and none could be trained on; "
        f"see the failures of group {shape.run_id}-t{ordinal:06d} (attempts by_failure in the report), then resume",
        details={"run": shape.run_id, "slot": str(ordinal)},
    )


def dev_panel(step: int) -> str:
    """`dev@<step>`."""
    return f"dev@{step}"


def dev_due(step: int, dev_every: int, steps: int) -> bool:
    """Whether the dev split is evaluated at this committed step while training; the last step's is part of the end."""
    return dev_every > 0 and step < steps and step % dev_every == 0


def panel_groups(
    run_id: str, seed: int, panel: str, split: str, tasks: Sequence[str], samples: int, version: int
) -> list[GroupPlan]:
    """One group per task with seeds that depend on split, task and sample only: two panels of a split are paired."""
    slug = panel.replace("@", "-").replace(":", "-")
    return [
        GroupPlan(
            group_id=f"{run_id}-{slug}-{ordinal:05d}",
            run_id=run_id,
            purpose=Purpose.EVAL,
            task_digest=task,
            seeds=tuple(derive_seed(seed, split, task, sample) for sample in range(samples)),
            min_scored=1,
            ordinal=ordinal,
            panel=panel,
            pinned_version=version,
        )
        for ordinal, task in enumerate(sorted(tasks))
    ]
