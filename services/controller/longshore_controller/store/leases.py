"""The queue of attempts in SQL: few statements per call, whatever the number of leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.database import Database
from longshore_controller.domain.leases import (
    Completion,
    HeartbeatVerdict,
    LeaseRef,
    LeaseRow,
    completed,
    granted,
    judge_heartbeat,
)
from longshore_controller.domain.run_state import ACTIVE
from longshore_controller.domain.stores import Grant
from longshore_controller.domain.vocabulary import LeaseState, Purpose
from longshore_controller.store import tables as t

_MAX_KEYS = 500


def _row(row: Row[Any]) -> LeaseRow:
    return LeaseRow(
        attempt_id=row.attempt_id,
        run_id=row.run_id,
        group_id=row.group_id,
        index=row.position,
        seed=row.seed,
        state=LeaseState(row.state),
        epoch=row.epoch,
        worker_id=row.worker_id,
        expires_at_ms=row.expires_at_ms,
        failures=row.failures,
    )


def _grantable(now_ms: int) -> Any:
    c = t.attempts.c
    return or_(c.state == LeaseState.QUEUED, and_(c.state == LeaseState.LEASED, c.expires_at_ms <= now_ms))


_ACTIVE_RUNS = select(t.runs.c.run_id).where(t.runs.c.state.in_(list(ACTIVE)))


class SqlLeaseStore:
    """`LeaseStore` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def has_work(self, now_ms: int) -> bool:
        query = select(t.attempts.c.queue_id).where(_grantable(now_ms), t.attempts.c.run_id.in_(_ACTIVE_RUNS)).limit(1)
        async with self._db.read() as connection:
            return (await connection.execute(query)).first() is not None

    async def claim(self, worker_id: str, limit: int, now_ms: int, ttl_s: float) -> list[Grant]:
        query = (
            select(t.attempts, t.groups.c.purpose, t.groups.c.panel, t.groups.c.task_digest, t.groups.c.pinned_version)
            .join(t.groups, t.groups.c.group_id == t.attempts.c.group_id)
            .where(_grantable(now_ms), t.attempts.c.run_id.in_(_ACTIVE_RUNS))
            .order_by(t.attempts.c.priority.desc(), t.attempts.c.queue_id)
            .limit(limit)
            .with_for_update(skip_locked=True, of=t.attempts)
        )
        async with self._db.begin() as connection:
            found = (await connection.execute(query)).all()
            grants = [
                Grant(
                    row=_row(row),
                    purpose=Purpose(row.purpose),
                    panel=row.panel,
                    task_digest=row.task_digest,
                    pinned_version=row.pinned_version,
                )
                for row in found
            ]
            if grants:
                await self._save_grants(connection, grants, worker_id, now_ms, ttl_s)
        return grants

    async def _save_grants(
        self, connection: AsyncConnection, grants: list[Grant], worker_id: str, now_ms: int, ttl_s: float
    ) -> None:
        change = (
            update(t.attempts)
            .where(t.attempts.c.attempt_id == bindparam("id"))
            .values(
                state=LeaseState.LEASED,
                epoch=bindparam("new_epoch"),
                worker_id=worker_id,
                expires_at_ms=bindparam("new_expiry"),
                first_leased_at_ms=_first(now_ms),
            )
        )
        rows = [granted(grant.row, worker_id, now_ms, ttl_s) for grant in grants]
        values = [{"id": r.attempt_id, "new_epoch": r.epoch, "new_expiry": r.expires_at_ms} for r in rows]
        await connection.execute(change, values)

    async def release(self, refs: Sequence[LeaseRef]) -> None:
        change = (
            update(t.attempts)
            .where(
                t.attempts.c.attempt_id == bindparam("id"),
                t.attempts.c.epoch == bindparam("at_epoch"),
                t.attempts.c.state == LeaseState.LEASED,
            )
            .values(state=LeaseState.QUEUED, worker_id="", expires_at_ms=0)
        )
        if refs:
            async with self._db.begin() as connection:
                await connection.execute(change, [{"id": ref.attempt_id, "at_epoch": ref.epoch} for ref in refs])

    async def heartbeat(self, worker_id: str, refs: Sequence[LeaseRef], now_ms: int, ttl_s: float) -> HeartbeatVerdict:
        async with self._db.begin() as connection:
            rows = await self._load(connection, [ref.attempt_id for ref in refs])
            active = frozenset((await connection.execute(_ACTIVE_RUNS)).scalars())
            verdict = judge_heartbeat(rows, list(refs), worker_id, active)
            await self._extend(connection, [r.attempt_id for r in verdict.extended], now_ms + round(1000 * ttl_s))
        return verdict

    async def _extend(self, connection: AsyncConnection, ids: list[str], expires_at_ms: int) -> None:
        for start in range(0, len(ids), _MAX_KEYS):
            where = t.attempts.c.attempt_id.in_(ids[start : start + _MAX_KEYS])
            await connection.execute(update(t.attempts).where(where).values(expires_at_ms=expires_at_ms))

    async def _load(self, connection: AsyncConnection, ids: Sequence[str]) -> dict[str, LeaseRow]:
        rows: dict[str, LeaseRow] = {}
        for start in range(0, len(ids), _MAX_KEYS):
            where = t.attempts.c.attempt_id.in_(list(ids[start : start + _MAX_KEYS]))
            found = await connection.execute(select(t.attempts).where(where).with_for_update())
            rows |= {row.attempt_id: _row(row) for row in found}
        return rows

    async def complete(self, worker_id: str, ref: LeaseRef, *, failed: bool, retries: int) -> Completion:
        async with self._db.begin() as connection:
            row = (await self._load(connection, [ref.attempt_id])).get(ref.attempt_id)
            active = frozenset((await connection.execute(_ACTIVE_RUNS)).scalars())
            result = completed(
                row,
                ref,
                worker_id,
                failed=failed,
                retries=retries,
                run_active=row is not None and row.run_id in active,
            )
            await self._save(connection, result.row)
        return result

    async def _save(self, connection: AsyncConnection, row: LeaseRow) -> None:
        await connection.execute(
            update(t.attempts)
            .where(t.attempts.c.attempt_id == row.attempt_id)
            .values(state=row.state, worker_id=row.worker_id, expires_at_ms=row.expires_at_ms, failures=row.failures)
        )

    async def run_of(self, attempt_id: str) -> str | None:
        query = select(t.attempts.c.run_id).where(t.attempts.c.attempt_id == attempt_id)
        async with self._db.read() as connection:
            return (await connection.execute(query)).scalar()

    async def queue_depth(self) -> dict[str, dict[LeaseState, int]]:
        live = (LeaseState.QUEUED, LeaseState.LEASED)
        query = (
            select(t.attempts.c.run_id, t.attempts.c.state, func.count())
            .where(t.attempts.c.state.in_(live))
            .group_by(t.attempts.c.run_id, t.attempts.c.state)
        )
        depths: dict[str, dict[LeaseState, int]] = {}
        async with self._db.read() as connection:
            for run_id, state, count in await connection.execute(query):
                depths.setdefault(run_id, {})[LeaseState(state)] = int(count)
        return depths


def _first(now_ms: int) -> Any:
    column = t.attempts.c.first_leased_at_ms
    return func.coalesce(func.nullif(column, 0), now_ms)
