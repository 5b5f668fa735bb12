"""Leases of attempts, decided row by row. An attempt has one newest epoch; only its holder may speak for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longshore_common.errors import Conflict
from longshore_controller.domain.vocabulary import LeaseState


@dataclass(frozen=True)
class LeaseRow:
    """An attempt in the queue. Times are milliseconds since the epoch."""

    attempt_id: str
    run_id: str
    group_id: str
    index: int
    seed: int
    state: LeaseState
    epoch: int = 0
    worker_id: str = ""
    expires_at_ms: int = 0
    failures: int = 0
    """Failed tries so far; lost leases are not counted."""


@dataclass(frozen=True)
class LeaseRef:
    """What a worker says it holds."""

    attempt_id: str
    epoch: int


@dataclass(frozen=True)
class HeartbeatVerdict:
    """What to tell a worker about its leases."""

    extended: tuple[LeaseRef, ...]
    lost: tuple[LeaseRef, ...]
    cancelled: tuple[LeaseRef, ...]


def holds(row: LeaseRow | None, ref: LeaseRef, worker_id: str) -> bool:
    """Whether the lease is still this worker's. One that ran out but was not granted again still is."""
    return row is not None and row.state is LeaseState.LEASED and row.epoch == ref.epoch and row.worker_id == worker_id


def _ended_by(row: LeaseRow, ref: LeaseRef, worker_id: str) -> bool:
    """The attempt ended under this very lease: the sealed event overtook its Complete, or Complete was sent again."""
    return row.state is LeaseState.DONE and row.epoch == ref.epoch and row.worker_id == worker_id


def judge_heartbeat(
    rows: dict[str, LeaseRow], refs: list[LeaseRef], worker_id: str, active_runs: frozenset[str]
) -> HeartbeatVerdict:
    """Sorts the worker's leases into extended, lost, and cancelled (its run no longer wants work)."""
    extended, lost, cancelled = [], [], []
    for ref in refs:
        row = rows.get(ref.attempt_id)
        if row is None or not holds(row, ref, worker_id):
            lost.append(ref)
        elif row.run_id not in active_runs:
            cancelled.append(ref)
        else:
            extended.append(ref)
    return HeartbeatVerdict(tuple(extended), tuple(lost), tuple(cancelled))


def granted(row: LeaseRow, worker_id: str, now_ms: int, ttl_s: float) -> LeaseRow:
    """The row after a grant: next epoch, fresh time to live."""
    return replace(
        row,
        state=LeaseState.LEASED,
        epoch=row.epoch + 1,
        worker_id=worker_id,
        expires_at_ms=now_ms + round(1000 * ttl_s),
    )


def grantable(row: LeaseRow, now_ms: int) -> bool:
    """Queued, or leased to someone whose time ran out."""
    return row.state is LeaseState.QUEUED or (row.state is LeaseState.LEASED and row.expires_at_ms <= now_ms)


@dataclass(frozen=True)
class Completion:
    """What a Complete call does to its row."""

    row: LeaseRow
    will_retry: bool
    seal_as_failed: bool
    """The retries are used up: the controller seals the attempt."""


def completed(
    row: LeaseRow | None, ref: LeaseRef, worker_id: str, *, failed: bool, retries: int, run_active: bool
) -> Completion:
    """Frees a lease. A failure is queued again until retries are used up; work of an inactive run always is.

    Raises:
        Conflict: the lease is not this worker's (any more).
    """
    if row is not None and _ended_by(row, ref, worker_id):
        return Completion(row, will_retry=False, seal_as_failed=False)
    if row is None or not holds(row, ref, worker_id):
        now = "unknown" if row is None else f"{row.state}, epoch {row.epoch}, worker '{row.worker_id}'"
        raise Conflict(
            f"attempt {ref.attempt_id}: epoch {ref.epoch} is no longer leased to worker '{worker_id}' (now {now}); "
            "write nothing more for it",
            details={"attempt": ref.attempt_id, "epoch": str(ref.epoch)},
        )
    if not failed:
        return Completion(replace(row, state=LeaseState.DONE), will_retry=False, seal_as_failed=False)
    free = replace(row, worker_id="", expires_at_ms=0)
    if not run_active:
        return Completion(replace(free, state=LeaseState.QUEUED), will_retry=True, seal_as_failed=False)
    if row.failures < retries:
        again = replace(free, state=LeaseState.QUEUED, failures=row.failures + 1)
        return Completion(again, will_retry=True, seal_as_failed=False)
    # The lease stays until the seal is there: a crash in between only hands the attempt out again.
    return Completion(replace(row, failures=row.failures + 1), will_retry=False, seal_as_failed=True)
