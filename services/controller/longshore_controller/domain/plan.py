"""The resolved plan of a run: the spec with digests in the place of names, and how much work it is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec
from longshore_controller.domain.planner import TrainingShape, dev_due
from longshore_controller.domain.spec import RunSpec
from longshore_controller.domain.vocabulary import READY_STATES, SplitName, TaskState, UnreadyTasks

_SHOWN = 10


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CatalogTask(_Model):
    """A task as the catalog answers."""

    digest: str
    name: str
    instruction: str
    state: TaskState
    state_reason: str
    skill: str
    """`skill` of the task's metadata; empty when it has none."""
    agent_timeout_s: float


class CatalogDataset(_Model):
    """A frozen dataset."""

    name: str
    digest: str
    splits: dict[str, tuple[str, ...]]


class ModelIdentity(_Model):
    """What the starting policy is made of."""

    base_digest: str
    """Of the model folder as given; after a warm start version 0 has its own, recorded when it exists."""
    tokenizer_digest: str
    template_digest: str


class ExcludedTask(_Model):
    """A task of the dataset that the run leaves out."""

    digest: str
    name: str
    split: str
    reason: str


class AttemptBudget(_Model):
    """Attempts planned, without refills and retries."""

    train: int
    dev: int
    test: int
    total: int


class Paths(_Model):
    """Where things lie on this machine; not part of the plan's digest."""

    model: str
    demonstrations: str | None


class ResolvedPlan(_Model):
    """Everything a run is determined by."""

    spec: RunSpec
    dataset_digest: str
    tasks: dict[str, tuple[str, ...]]
    """Digests per split, without the excluded ones, sorted."""
    excluded: tuple[ExcludedTask, ...]
    model: ModelIdentity
    harness_config_digest: str
    verifier_digest: str
    demonstrations_digest: str | None
    steps: int
    groups: int
    dev_panels: tuple[int, ...]
    """Steps whose policy is evaluated on dev; the last one together with the test panels."""
    attempts: AttemptBudget
    paths: Paths = Field(repr=False)

    def digest(self) -> str:
        """Of the plan without paths: the same run on another machine has the same."""
        return digest(self.model_dump(mode="json", exclude={"paths": True, "spec": _SPEC_PATHS}))

    def shape(self, run_id: str, max_refills: int) -> TrainingShape:
        """What the planner needs."""
        rollout = self.spec.rollout
        return TrainingShape(
            run_id=run_id,
            seed=self.spec.seed,
            tasks=self.tasks[SplitName.TRAIN],
            steps=self.steps,
            groups_per_step=rollout.groups_per_step,
            group_size=rollout.group_size,
            min_scored=rollout.min_scored,
            max_staleness=rollout.max_staleness,
            max_refills=max_refills,
        )


_SPEC_PATHS = {"model": {"path"}, "warm_start": {"demonstrations"}}


def usable_tasks(
    spec: RunSpec, dataset: CatalogDataset, tasks: dict[str, CatalogTask]
) -> tuple[dict[str, tuple[str, ...]], tuple[ExcludedTask, ...]]:
    """Task digests per split, and what is left out.

    Raises:
        InvalidSpec: splits overlap, a needed one is empty, or tasks lack evidence (unless the spec excludes them).
    """
    _refuse_overlap(dataset)
    needed = [SplitName.TRAIN, SplitName.TEST, *([SplitName.DEV] if spec.evaluation.dev_every else [])]
    unready = [
        ExcludedTask(digest=key, name=tasks[key].name, split=split, reason=_unready_reason(tasks[key]))
        for split in needed
        for key in dataset.splits.get(split, ())
        if tasks[key].state not in READY_STATES
    ]
    if unready and spec.tasks.unready is UnreadyTasks.REFUSE:
        raise _no_evidence(dataset.name, unready)
    left_out = {task.digest for task in unready}
    chosen = {
        split.value: tuple(sorted(key for key in dataset.splits.get(split, ()) if key not in left_out))
        for split in needed
    }
    for split, digests in chosen.items():
        if not digests:
            sizes = ", ".join(f"{k}: {len(v)}" for k, v in dataset.splits.items()) or "none"
            raise InvalidSpec(
                f"dataset '{dataset.name}' has no usable task in split '{split}' (splits: {sizes}); "
                "split and probe it first",
                field="tasks.dataset",
            )
    return chosen, tuple(unready)


def _refuse_overlap(dataset: CatalogDataset) -> None:
    seen: dict[str, str] = {}
    for split, digests in dataset.splits.items():
        for key in digests:
            if key in seen:
                raise InvalidSpec(
                    f"dataset '{dataset.name}': task {key} is in split '{seen[key]}' and again in '{split}'; "
                    "splits must be disjoint, or the test says nothing",
                    field="tasks.dataset",
                )
            seen[key] = split


def _unready_reason(task: CatalogTask) -> str:
    return task.state.value + (f": {task.state_reason}" if task.state_reason else "")


def _no_evidence(dataset: str, unready: list[ExcludedTask]) -> InvalidSpec:
    shown = "\n".join(f"- {task.split}: {task.name} ({task.reason})" for task in unready[:_SHOWN])
    more = f"\n- and {len(unready) - _SHOWN} more" if len(unready) > _SHOWN else ""
    return InvalidSpec(
        f"dataset '{dataset}': {len(unready)} tasks are not evaluable:\n{shown}{more}\n"
        f"probe them (longshore task probe {dataset}), or set tasks.unready: exclude to leave them out",
        field="tasks.dataset",
    )


def dev_panels(spec: RunSpec) -> tuple[int, ...]:
    """Steps with a dev panel: 0, k, 2k, ... and the last."""
    every, steps = spec.evaluation.dev_every, spec.algorithm.steps
    if not every:
        return ()
    return (*(step for step in range(0, steps, every) if dev_due(step, every, steps)), steps)


def budget(spec: RunSpec, tasks: dict[str, tuple[str, ...]]) -> AttemptBudget:
    """Attempts that the plan asks for."""
    train = spec.algorithm.steps * spec.rollout.groups_per_step * spec.rollout.group_size
    dev = len(dev_panels(spec)) * len(tasks.get(SplitName.DEV, ())) * spec.evaluation.dev_samples
    test = 2 * len(tasks[SplitName.TEST]) * spec.evaluation.test_samples
    return AttemptBudget(train=train, dev=dev, test=test, total=train + dev + test)
