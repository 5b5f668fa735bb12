"""What the servicer needs of a store. Every write is durable when it returns.

It is in the domain because api and store, which do not import each other, both need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose, SealRequest
from longshore_trajectory_store.domain.batches import TakeRequest, TakeResult
from longshore_trajectory_store.domain.changes import Changes
from longshore_trajectory_store.domain.counts import Counts
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.outcomes import DiscardReason
from longshore_trajectory_store.domain.turns import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttemptFilter:
    """None or empty: any."""

    run_id: str = ""
    purpose: Purpose | None = None
    panel: str = ""
    group_id: str = ""
    state: AttemptState | None = None


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """None or empty: any."""

    run_id: str = ""
    purpose: Purpose | None = None
    panel: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows in order of creation; `next_after` 0: no more."""

    items: list[T]
    next_after: int


class TrajectoryStore(Protocol):
    """Attempts, turns, groups and the ledger."""

    sealed: Changes
    """Told after every commit that seals or discards an attempt."""

    ledger: Changes
    """Told after every commit that may change what TakeBatch answers."""

    async def create_group(self, group: Group, attempt_ids: Sequence[str]) -> tuple[Group, bool]:
        """The stored group, and whether this call made it. Raises InvalidSpec; Conflict: other content, closed run."""
        ...

    async def fence(self, attempt_id: str, epoch: int) -> None:
        """Only this epoch or a newer one may write from now on. Raises NotFound, PermissionDenied, Conflict."""
        ...

    async def append_turn(self, turn: Turn) -> int:
        """The turn's number in the store. Raises InvalidSpec, NotFound, PermissionDenied, Conflict, QuotaExceeded."""
        ...

    async def seal(self, request: SealRequest) -> tuple[Attempt, Group]:
        """The sealed attempt and its group. Raises InvalidSpec, NotFound, PermissionDenied, Conflict, QuotaExceeded."""
        ...

    async def discard(self, attempt_ids: Sequence[str], reason: DiscardReason) -> int:
        """How many were discarded; those that this reason cannot change any more are skipped. Raises NotFound."""
        ...

    async def get_attempt(self, attempt_id: str, with_turns: bool) -> tuple[Attempt, list[Turn]]:
        """The attempt, and the turns of its newest epoch. Raises NotFound."""
        ...

    async def list_attempts(self, where: AttemptFilter, limit: int, after: int) -> Page[Attempt]:
        """Attempts in order of creation."""
        ...

    async def get_group(self, group_id: str) -> tuple[Group, list[Attempt]]:
        """The group and its attempts by index. Raises NotFound."""
        ...

    async def list_groups(self, where: GroupFilter, limit: int | None, after: int) -> Page[Group]:
        """Groups in order of creation. limit None: all."""
        ...

    async def take_batch(self, request: TakeRequest) -> TakeResult:
        """Sweeps what is stale, then takes the oldest groups when there are enough. Raises InvalidSpec, Conflict."""
        ...

    async def commit_batch(self, run_id: str, incarnation: int, step: int, batch_id: str) -> None:
        """Marks the batch consumed. Raises NotFound, Conflict."""
        ...

    async def resume_run(self, run_id: str, incarnation: int, step: int, ledger: Sequence[str]) -> tuple[int, int]:
        """(groups released, attempts stale). Raises InvalidSpec, Conflict."""
        ...

    async def close_run(self, run_id: str, discard_open: bool) -> int:
        """How many open attempts were discarded as cancelled."""
        ...

    async def counts(self, run_id: str, purpose: Purpose | None, panel: str) -> Counts:
        """Numbers of attempts by outcome."""
        ...

    async def sealed_after(self, run_id: str, after: int, limit: int) -> list[tuple[Attempt, Group]]:
        """Sealed and discarded attempts with sequence > after, in order of it. run_id empty: of all runs."""
        ...
