"""What the catalog does, over its ports."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, InvalidSpec, NotFound
from longshore_common.ids import new_id
from longshore_task_catalog.domain.datasets import make_dataset, split_reference
from longshore_task_catalog.domain.inspection import Inspection, inspect_bundle
from longshore_task_catalog.domain.model import (
    Dataset,
    Evidence,
    EvidenceKind,
    Finding,
    Limits,
    Page,
    ProbeResult,
    Task,
    TaskState,
)
from longshore_task_catalog.domain.ports import BundleStore, TaskStore
from longshore_task_catalog.domain.probe import MAX_REPEATS, Prober

MAX_PAGE = 1000
DEFAULT_PAGE = 100


@dataclass(frozen=True)
class ImportResult:
    """The task unless there are errors, whether it is new, and what lint says."""

    task: Task | None
    created: bool
    findings: tuple[Finding, ...]


class Catalog:
    """Import, look-up, datasets, probes, evidence."""

    def __init__(
        self,
        tasks: TaskStore,
        bundles: BundleStore,
        prober: Prober,
        clock: Clock,
        defaults: Limits,
        probe_concurrency: tuple[int, int],
    ) -> None:
        """probe_concurrency: what a call gets that names no number, and the most that it may name."""
        self._tasks, self._bundles, self._prober, self._clock = tasks, bundles, prober, clock
        self._defaults = defaults
        self._concurrency, self._max_concurrency = probe_concurrency

    async def import_task(self, bundle: bytes, name: str, source: str, dry_run: bool) -> ImportResult:
        """Stores a task, whole or not at all; the same content again changes nothing. A dry run only looks.

        Raises:
            InvalidSpec: lint found errors (not for a dry run, whose answer holds them).
        """
        inspection = await asyncio.to_thread(inspect_bundle, bundle, name, self._defaults)
        if inspection.errors and not dry_run:
            raise _refusal(name, inspection)
        if inspection.content is None:
            return ImportResult(None, False, inspection.findings)
        wanted = Task(inspection.content, imported_at_ms=self._clock.now_ms(), source=source)
        known = await self._tasks.get_task(wanted.digest)
        if dry_run:
            return ImportResult(known or wanted, False, inspection.findings)
        # The bundle first: a row without one would be a task that cannot run. Its key is the digest, so a crash
        # in between leaves an object that the next import of the task uses.
        if known is None or not await self._bundles.exists(wanted.digest):
            await self._bundles.put(wanted.digest, bundle)
        created = known is None and await self._tasks.add_task(wanted)
        return ImportResult(await self._tasks.get_task(wanted.digest), created, inspection.findings)

    async def get_task(self, reference: str) -> Task:
        """A task by digest, or by a name that only one digest has. Raises NotFound, Conflict."""
        digest = reference
        if not reference.startswith("sha256:"):
            found = await self._tasks.find_by_name(reference)
            if len(found) > 1:
                raise Conflict(f"{len(found)} tasks are named {reference}: {', '.join(found)}; give the digest")
            digest = found[0] if found else ""
        task = await self._tasks.get_task(digest) if digest else None
        if task is None:
            raise NotFound(f"no task {reference}; import it first, or list what there is")
        return task

    async def get_bundle(self, digest: str) -> bytes:
        """The files of a task, as imported. Raises NotFound."""
        task = await self.get_task(digest)
        return await self._bundles.get(task.digest)

    async def list_tasks(self, dataset: str, split: str, after: tuple[str, str] | None, size: int) -> Page:
        """A page of all tasks, or of those of a dataset or split. Raises NotFound, InvalidSpec."""
        if split and not dataset:
            raise InvalidSpec(f"split {split!r} needs a dataset; name one", field="dataset")
        digests = frozenset(await self._members(dataset, split)) if dataset else None
        return await self._tasks.list_tasks(digests, after, min(size if size > 0 else DEFAULT_PAGE, MAX_PAGE))

    async def _members(self, reference: str, split: str) -> Sequence[str]:
        dataset = await self.get_dataset(reference)
        if split and split not in dataset.splits:
            raise NotFound(f"dataset {dataset.name} has no split {split}; it has {', '.join(sorted(dataset.splits))}")
        splits = [dataset.splits[split]] if split else dataset.splits.values()
        return [digest for one in splits for digest in one]

    async def freeze(self, name: str, splits: Sequence[tuple[str, Sequence[str]]]) -> tuple[Dataset, bool]:
        """Locks a dataset; whether it is new. Raises InvalidSpec, NotFound, Conflict."""
        dataset = make_dataset(name, splits, self._clock.now_ms())
        digests = [digest for tasks in dataset.splits.values() for digest in tasks]
        if unknown := await self._tasks.unknown_tasks(digests):
            raise NotFound(
                f"{len(unknown)} of {len(digests)} tasks of dataset {name} are not imported, e.g. {unknown[0]}",
                details={"digest": unknown[0]},
            )
        return await self._tasks.freeze(dataset)

    async def get_dataset(self, reference: str) -> Dataset:
        """A dataset by "name" or "name@digest". Raises NotFound, Conflict."""
        name, wanted = split_reference(reference)
        dataset = await self._tasks.get_dataset(name)
        if dataset is None:
            raise NotFound(f"no dataset {name}; freeze one first")
        if wanted and wanted != dataset.digest:
            raise Conflict(f"dataset {name} has digest {dataset.digest}, not {wanted}")
        return dataset

    async def list_datasets(self) -> list[Dataset]:
        """All datasets by name."""
        return await self._tasks.list_datasets()

    def probe(self, digests: Sequence[str], repeats: int, concurrency: int, force: bool) -> AsyncIterator[ProbeResult]:
        """Probes tasks; see Prober. Raises InvalidSpec."""
        if not 0 <= repeats <= MAX_REPEATS:
            raise InvalidSpec(f"repeats is {repeats}; give 1 to {MAX_REPEATS}", field="repeats")
        if not 0 <= concurrency <= self._max_concurrency:
            raise InvalidSpec(f"concurrency is {concurrency}; give 1 to {self._max_concurrency}", field="concurrency")
        return self._prober.probe(digests, repeats or 1, concurrency or self._concurrency, force, new_id("probe"))

    async def record_reference(
        self, digest: str, rewards: Sequence[float], token_exact: bool, reference: str
    ) -> TaskState:
        """Evidence of a training run's reference group. Raises NotFound, InvalidSpec."""
        if not rewards or not all(math.isfinite(reward) for reward in rewards):
            raise InvalidSpec("a reference group needs finite rewards of its scored attempts", field="rewards")
        evidence = Evidence(
            EvidenceKind.REFERENCE, tuple(rewards), (), "", self._clock.now_ms(), reference, token_exact
        )
        return (await self._tasks.add_evidence(digest, [evidence])).state


def _refusal(name: str, inspection: Inspection) -> InvalidSpec:
    errors = inspection.errors
    lines = "; ".join(f"{finding.where}: {finding.message} [{finding.rule}]" for finding in errors)
    return InvalidSpec(f"task {name or '(unnamed)'} is not imported: {lines}", field=errors[0].where)
