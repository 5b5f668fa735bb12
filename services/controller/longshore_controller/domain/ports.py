"""What the application needs from other services and from this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from longshore_controller.domain.artifacts import ArtifactHeader, StoredArtifact
from longshore_controller.domain.evaluation import AttemptResult
from longshore_controller.domain.jobs import JobFile
from longshore_controller.domain.plan import CatalogDataset, CatalogTask, ModelIdentity
from longshore_controller.domain.planner import GroupPlan
from longshore_controller.domain.records import AttemptCounts, GroupInfo, PolicyInfo, SealedAttempt
from longshore_controller.domain.spec import SandboxSpec
from longshore_controller.domain.vocabulary import Purpose


class Catalog(Protocol):
    """The task catalog."""

    async def dataset(self, name: str) -> CatalogDataset:
        """A frozen dataset. Raises NotFound."""
        ...

    async def tasks(self, dataset: str) -> list[CatalogTask]:
        """All tasks of a dataset."""
        ...


class Trajectory(Protocol):
    """The trajectory store."""

    async def create_group(self, plan: GroupPlan) -> None:
        """Idempotent. Raises Conflict: other content under the id, or the run is closed."""
        ...

    async def fence(self, attempt_id: str, epoch: int) -> None:
        """From now on only this epoch writes. Raises Conflict: sealed, or a newer epoch."""
        ...

    async def seal_failed(self, attempt_id: str, epoch: int, failure: str, evidence: str) -> None:
        """Fixes the attempt's outcome as failed."""
        ...

    async def list_groups(self, run_id: str, purpose: Purpose, panel: str = "") -> list[GroupInfo]:
        """Groups of a run."""
        ...

    async def open_attempts(self, group_id: str) -> set[str]:
        """Ids of the group's attempts that are not sealed."""
        ...

    async def results(self, run_id: str, panel: str) -> list[AttemptResult]:
        """Sealed attempts of an evaluation panel, discarded ones left out."""
        ...

    async def counts(self, run_id: str, purpose: Purpose) -> AttemptCounts:
        """The ledger of attempts."""
        ...

    async def close_run(self, run_id: str, discard_open: bool) -> None:
        """TakeBatch answers closed from now on."""
        ...

    async def discard_surplus(self, attempt_ids: Sequence[str]) -> None:
        """Discards open attempts that nobody needs any more."""
        ...

    def watch_sealed(self, run_id: str, after: int) -> AsyncIterator[SealedAttempt]:
        """Sealed and discarded attempts after a sequence, then live."""
        ...


class Gateway(Protocol):
    """The inference gateway."""

    async def publish_base(self, run_id: str, alias: str, incarnation: int, uri: str, digest: str) -> None:
        """Serves version 0 (full weights); returns when the engines have it. Takes as long as an engine's start."""
        ...

    async def republish(self, run_id: str, alias: str, policy: PolicyInfo, incarnation: int) -> None:
        """Serves a known version again, e.g. after a restart."""
        ...

    async def policy(self, alias: str, version: int) -> PolicyInfo | None:
        """One version; None when the gateway has not heard of it."""
        ...

    async def policies(self, alias: str) -> list[PolicyInfo]:
        """All versions of an alias; empty when it is unknown."""
        ...

    async def retire(self, alias: str) -> None:
        """The alias is no longer used."""
        ...


class Job(Protocol):
    """A running trainer job."""

    async def wait(self) -> int:
        """Its exit status."""
        ...

    async def stop(self) -> None:
        """Ends it and everything below it."""
        ...

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        ...


class JobLauncher(Protocol):
    """Starts trainer jobs: processes here, Jobs in a cluster."""

    @property
    def platform(self) -> str:
        """Evidence axis: "cpu" or "gpu"."""
        ...

    async def launch(self, job: JobFile) -> Job:
        """Starts one. Raises Unavailable when it cannot be started."""
        ...


class SandboxDemand(Protocol):
    """The sandbox scheduler's warm pools."""

    async def announce(self, run_id: str, tasks: Mapping[str, int], sandbox: SandboxSpec | None) -> None:
        """Sandboxes that a run will claim soon, by task digest; replaces what was said before."""
        ...


class Artifacts(Protocol):
    """Models, demonstrations and checkpoints on this machine."""

    def resolve(self, path: str) -> Path:
        """A spec's path, made absolute."""
        ...

    def out_dir(self, run_id: str) -> Path:
        """Checkpoint folder of a run."""
        ...

    async def model_identity(self, folder: Path) -> ModelIdentity:
        """Digests of a model folder. Raises InvalidSpec when it is none."""
        ...

    async def file_digest(self, path: Path) -> str:
        """Digest of a file. Raises InvalidSpec when it is missing."""
        ...

    async def base_complete(self, run_id: str) -> bool:
        """Whether the warm start's result is there, whole."""
        ...

    async def tree_digest(self, folder: Path) -> str:
        """Digest of a folder."""
        ...


class ArtifactStore(Protocol):
    """Artifacts that users push, at the places that `Artifacts.resolve` gives for their names."""

    def received(
        self, header: ArtifactHeader, data: AsyncIterator[bytes]
    ) -> AbstractAsyncContextManager[StoredArtifact]:
        """Takes the data aside and checks it; it is gone after the block unless `place` was called.

        Raises InvalidSpec when it is not what the header says, QuotaExceeded.
        """
        ...

    async def place(self, name: str, received: StoredArtifact) -> StoredArtifact:
        """Puts it where it belongs in one step, in the place of an earlier one.

        Raises Conflict when something is there that was not pushed.
        """
        ...

    async def all(self) -> list[StoredArtifact]:
        """By name."""
        ...

    async def remove(self, name: str) -> None:
        """Removes one; absent is no error."""
        ...
