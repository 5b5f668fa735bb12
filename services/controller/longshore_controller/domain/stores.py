"""What the application asks of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from longshore_controller.domain.leases import Completion, HeartbeatVerdict, LeaseRef, LeaseRow
from longshore_controller.domain.planner import BrokenSlot, GroupPlan
from longshore_controller.domain.records import (
    EventRecord,
    GroupInfo,
    RunRecord,
    RunTask,
    SealedAttempt,
    StepRecord,
    StepTimes,
    WorkTotals,
)
from longshore_controller.domain.vocabulary import EventKind, LeaseState, Purpose, RunState


@dataclass(frozen=True)
class NewRun:
    """A run to store."""

    run_id: str
    name: str
    plan_json: str
    plan_digest: str
    seed: int
    alias: str
    total_steps: int
    tasks: Sequence[RunTask]
    idempotency_key: str


@dataclass(frozen=True)
class NewEvent:
    """An event to append."""

    kind: EventKind
    message: str
    data: Mapping[str, object]


class RunStore(Protocol):
    """Runs, their events and their steps. Every write of an event wakes watchers."""

    async def create(self, run: NewRun) -> tuple[RunRecord, bool]:
        """Stores a PENDING run; (the earlier one, False) for a key seen before."""
        ...

    async def get(self, run: str) -> RunRecord:
        """By id, or the newest of a name. Raises NotFound."""
        ...

    async def page(self, size: int, before: str) -> list[RunRecord]:
        """Newest first, older than run id `before` (empty: from the newest)."""
        ...

    async def in_states(self, states: Sequence[RunState]) -> list[RunRecord]:
        """Oldest first."""
        ...

    async def move(self, run_id: str, target: RunState, reason: str = "") -> RunRecord:
        """Changes the state and appends the event, together. Raises Conflict when the move is not allowed."""
        ...

    async def new_incarnation(self, run_id: str) -> int:
        """Counts up and returns the trainer incarnation."""
        ...

    async def set_base_digest(self, run_id: str, digest: str) -> None:
        """Records what version 0 is."""
        ...

    async def advance(self, run_id: str, step: int) -> None:
        """Raises the committed step (and the policy version) to at least this; never lowers it."""
        ...

    async def record_step(self, record: StepRecord) -> bool:
        """Upserts a step and the run's newest metrics; True when the (run, phase, step) is new.

        Raises Conflict: the incarnation is not the run's newest.
        """
        ...

    async def append(self, run_id: str, event: NewEvent) -> None:
        """Appends an event."""
        ...

    async def events(self, run_id: str, after: int, limit: int) -> list[EventRecord]:
        """Events with sequence > after, in order."""
        ...

    async def steps(self, run_id: str) -> list[StepRecord]:
        """All steps, warm start first."""
        ...

    async def newest_step(self, run_id: str) -> StepRecord | None:
        """The last training step; before the first one, the last of the warm start."""
        ...

    async def tasks(self, run_id: str) -> list[RunTask]:
        """The run's tasks."""
        ...

    async def save_report(self, run_id: str, report_json: str) -> None:
        """Keeps the final report."""
        ...

    async def report(self, run_id: str) -> str:
        """The kept report; empty before the end."""
        ...


class WorkStore(Protocol):
    """Groups and attempts as the controller follows them."""

    async def add_groups(self, plans: Sequence[GroupPlan]) -> None:
        """Queues the groups' attempts; known groups are left as they are."""
        ...

    async def next_ordinal(self, run_id: str) -> int:
        """The first training slot that has no group."""
        ...

    async def broken_slots(self, run_id: str) -> list[BrokenSlot]:
        """Training slots whose newest group cannot be trained on."""
        ...

    async def panel_progress(self, run_id: str, panel: str) -> tuple[int, int]:
        """(groups, groups that are still open) of a panel."""
        ...

    async def panels(self, run_id: str) -> list[str]:
        """Names of the run's panels."""
        ...

    async def sealed_sequence(self, run_id: str) -> int:
        """How far the trajectory store's sealed attempts were followed."""
        ...

    async def apply_sealed(self, run_id: str, sealed: Sequence[SealedAttempt]) -> None:
        """Marks attempts done and moves groups, together with the sequence."""
        ...

    async def set_group_states(self, groups: Sequence[GroupInfo]) -> None:
        """Takes over what the trajectory store says."""
        ...

    async def finished_open_groups(self, run_id: str) -> list[str]:
        """Open groups none of whose attempts is queued or leased."""
        ...

    async def requeue(self, attempt_ids: Sequence[str]) -> None:
        """Puts attempts back into the queue."""
        ...

    async def unfinished_attempts(self, run_id: str, purpose: Purpose) -> list[str]:
        """Attempts that are queued or leased."""
        ...

    async def queued_tasks(self, run_id: str) -> dict[str, int]:
        """Attempts that wait for a worker, by task digest."""
        ...

    async def mark_done(self, attempt_ids: Sequence[str]) -> None:
        """Takes attempts out of the queue."""
        ...

    async def step_times(self, run_id: str) -> dict[int, StepTimes]:
        """Rollout times per training step."""
        ...

    async def totals(self, run_id: str, purpose: Purpose) -> WorkTotals:
        """Costs of a purpose's attempts."""
        ...


@dataclass(frozen=True)
class Grant:
    """A lease just granted, with what its group says."""

    row: LeaseRow
    """Before the grant: the lease itself has the next epoch."""
    purpose: Purpose
    panel: str
    task_digest: str
    pinned_version: int | None


class LeaseStore(Protocol):
    """The queue of attempts."""

    async def has_work(self, now_ms: int) -> bool:
        """Whether something can be granted."""
        ...

    async def claim(self, worker_id: str, limit: int, now_ms: int, ttl_s: float) -> list[Grant]:
        """Grants up to `limit` attempts of active runs with their next epoch; evaluation first, then oldest first."""
        ...

    async def release(self, refs: Sequence[LeaseRef]) -> None:
        """Puts granted attempts back, as if the grant had not reached anyone; their epochs stay used."""
        ...

    async def heartbeat(self, worker_id: str, refs: Sequence[LeaseRef], now_ms: int, ttl_s: float) -> HeartbeatVerdict:
        """Extends what is the worker's."""
        ...

    async def complete(self, worker_id: str, ref: LeaseRef, *, failed: bool, retries: int) -> Completion:
        """Frees a lease. Raises Conflict when it is not the worker's."""
        ...

    async def run_of(self, attempt_id: str) -> str | None:
        """The attempt's run; None when the attempt is unknown."""
        ...

    async def queue_depth(self) -> dict[str, dict[LeaseState, int]]:
        """Attempts by run and lease state; done ones are left out, and so is what is 0."""
        ...
