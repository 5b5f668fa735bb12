"""What the catalog's rules need from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from longshore_task_catalog.domain.model import Dataset, Evidence, Page, Task


class TaskStore(Protocol):
    """Tasks, evidence and datasets. Every method raises QuotaExceeded(which="disk") or Unavailable."""

    async def add_task(self, task: Task) -> bool:
        """Stores the task unless its digest is known; whether it was stored."""
        ...

    async def get_task(self, digest: str) -> Task | None: ...

    async def find_by_name(self, name: str) -> list[str]:
        """Digests of the tasks with this name."""
        ...

    async def list_tasks(self, digests: frozenset[str] | None, after: tuple[str, str] | None, limit: int) -> Page:
        """Tasks in order of name and digest, only those of `digests` when given, from behind `after`."""
        ...

    async def unknown_tasks(self, digests: list[str]) -> list[str]:
        """Those of the digests that are not stored."""
        ...

    async def add_evidence(self, digest: str, evidence: list[Evidence]) -> Task:
        """Appends evidence and derives the state anew, in one transaction. Raises NotFound."""
        ...

    async def freeze(self, dataset: Dataset) -> tuple[Dataset, bool]:
        """Stores the dataset unless the name has this content already. Raises Conflict when it has another."""
        ...

    async def get_dataset(self, name: str) -> Dataset | None: ...

    async def list_datasets(self) -> list[Dataset]: ...


class BundleStore(Protocol):
    """Bundles by task digest."""

    async def put(self, digest: str, bundle: bytes) -> None: ...

    async def get(self, digest: str) -> bytes: ...

    async def exists(self, digest: str) -> bool: ...


@dataclass(frozen=True)
class ProbeRun:
    """How one probe run ended: a reward or a failure name, never both."""

    reward: float | None
    failure: str = ""
    image_digest: str = ""
    detail: str = ""


class ProbeRunner(Protocol):
    """Runs a task once in a sandbox of its own. What fails there is named in the answer, not raised."""

    async def oracle(self, task: Task, solution_tar: bytes, probe_id: str, run: int) -> ProbeRun:
        """Runs the solution, then the tests."""
        ...

    async def nop(self, task: Task, probe_id: str) -> ProbeRun:
        """Runs the tests on an untouched sandbox."""
        ...
