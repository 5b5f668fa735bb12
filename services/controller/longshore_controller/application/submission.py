"""From a spec text to a resolved plan, and to a stored run when it is not a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longshore_common.clock import Clock
from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec, NotFound
from longshore_common.ids import new_id
from longshore_controller.domain.plan import (
    CatalogDataset,
    CatalogTask,
    Paths,
    ResolvedPlan,
    budget,
    dev_panels,
    usable_tasks,
)
from longshore_controller.domain.ports import Artifacts, Catalog
from longshore_controller.domain.records import RunRecord, RunTask
from longshore_controller.domain.spec import RunSpec
from longshore_controller.domain.spec_parsing import parse_spec
from longshore_controller.domain.stores import NewRun, RunStore
from longshore_controller.domain.vocabulary import RunState


@dataclass(frozen=True)
class Resolved:
    """A plan and the tasks that it names."""

    plan: ResolvedPlan
    tasks: list[RunTask]


class SubmissionService:
    """Checks specs against the catalog and this machine's files; changes nothing unless asked to store."""

    def __init__(self, runs: RunStore, catalog: Catalog, artifacts: Artifacts, clock: Clock) -> None:
        self._runs = runs
        self._catalog = catalog
        self._artifacts = artifacts
        self._clock = clock

    async def submit(self, spec_text: str, dry_run: bool, idempotency_key: str) -> tuple[RunRecord, bool]:
        """The run (for a dry run: what it would be, without an id) and whether it was created now.

        Raises:
            InvalidSpec: the spec, the dataset, the model or the demonstrations are not fit.
        """
        resolved = await self.resolve(parse_spec(spec_text))
        if dry_run:
            return self._preview(resolved.plan), False
        run_id = new_id("run")
        plan = resolved.plan
        return await self._runs.create(
            NewRun(
                run_id=run_id,
                name=plan.spec.name,
                plan_json=plan.model_dump_json(),
                plan_digest=plan.digest(),
                seed=plan.spec.seed,
                # The run's id, so that a served name is never reused by another run.
                alias=run_id,
                total_steps=plan.steps,
                tasks=resolved.tasks,
                idempotency_key=idempotency_key,
            )
        )

    def _preview(self, plan: ResolvedPlan) -> RunRecord:
        now = self._clock.now_ms()
        return RunRecord(
            run_id="",
            name=plan.spec.name,
            state=RunState.PENDING,
            state_reason="dry run: nothing was stored",
            plan_json=plan.model_dump_json(),
            plan_digest=plan.digest(),
            seed=plan.spec.seed,
            alias="",
            step=0,
            total_steps=plan.steps,
            policy_version=0,
            incarnation=0,
            base_digest="",
            created_at_ms=now,
            updated_at_ms=now,
            finished_at_ms=0,
        )

    async def resolve(self, spec: RunSpec) -> Resolved:
        """Digests in the place of names."""
        dataset = await self._dataset(spec.tasks.dataset)
        listed = {task.digest: task for task in await self._catalog.tasks(dataset.name)}
        _refuse_missing(dataset, listed)
        chosen, excluded = usable_tasks(spec, dataset, listed)
        model_dir = self._artifacts.resolve(spec.model.path)
        demonstrations = self._artifacts.resolve(spec.warm_start.demonstrations) if spec.warm_start else None
        plan = ResolvedPlan(
            spec=spec,
            dataset_digest=dataset.digest,
            tasks=chosen,
            excluded=excluded,
            model=await self._artifacts.model_identity(model_dir),
            harness_config_digest=digest(spec.harness.config),
            verifier_digest=digest(spec.verifier.model_dump(mode="json")),
            demonstrations_digest=await self._demonstrations_digest(demonstrations),
            steps=spec.algorithm.steps,
            groups=spec.algorithm.steps * spec.rollout.groups_per_step,
            dev_panels=dev_panels(spec),
            attempts=budget(spec, chosen),
            paths=Paths(model=str(model_dir), demonstrations=str(demonstrations) if demonstrations else None),
        )
        tasks = [_run_task(listed[key], split) for split, digests in chosen.items() for key in digests]
        return Resolved(plan, tasks)

    async def _dataset(self, reference: str) -> CatalogDataset:
        name, _, wanted = reference.partition("@")
        try:
            dataset = await self._catalog.dataset(name)
        except NotFound as error:
            raise InvalidSpec(f"tasks.dataset: {error.message}", field="tasks.dataset") from error
        if wanted and dataset.digest != wanted:
            raise InvalidSpec(
                f"tasks.dataset: '{name}' has digest {dataset.digest}, not {wanted}; correct one of the two",
                field="tasks.dataset",
            )
        return dataset

    async def _demonstrations_digest(self, path: Path | None) -> str | None:
        return await self._artifacts.file_digest(path) if path is not None else None


def _refuse_missing(dataset: CatalogDataset, listed: dict[str, CatalogTask]) -> None:
    missing = [key for digests in dataset.splits.values() for key in digests if key not in listed]
    if missing:
        raise InvalidSpec(
            f"dataset '{dataset.name}': the catalog does not list {len(missing)} of its tasks, first {missing[0]}; "
            "import them again",
            field="tasks.dataset",
        )


def _run_task(task: CatalogTask, split: str) -> RunTask:
    return RunTask(
        digest=task.digest,
        split=split,
        name=task.name,
        instruction=task.instruction,
        skill=task.skill,
        agent_timeout_s=task.agent_timeout_s,
    )
