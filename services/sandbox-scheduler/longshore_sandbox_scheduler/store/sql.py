"""Sandbox records in SQLite or Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from longshore_common.database import Database
from longshore_common.errors import Conflict
from longshore_sandbox_scheduler.domain.model import (
    EndReason,
    LaunchType,
    Limits,
    NetworkClass,
    Sandbox,
    SandboxState,
)

_metadata = sa.MetaData()
_sandboxes = sa.Table(
    "sandboxes",
    _metadata,
    sa.Column("sandbox_id", sa.String, primary_key=True),
    sa.Column("state", sa.String),
    sa.Column("task_digest", sa.String),
    sa.Column("run_id", sa.String),
    sa.Column("attempt_id", sa.String),
    sa.Column("created_at_ms", sa.BigInteger),
    sa.Column("expires_at_ms", sa.BigInteger),
    sa.Column("limits", sa.JSON),
    sa.Column("runtime", sa.String),
    sa.Column("owner", sa.String),
    sa.Column("idempotency_key", sa.String),
    sa.Column("image_digest", sa.String),
    sa.Column("end_reason", sa.String),
    sa.Column("end_detail", sa.String),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Column("enforcement", sa.JSON),
    sa.Column("network", sa.String),
    sa.Column("launch", sa.String),
    sa.Column("instance", sa.String),
    sa.Column("node", sa.String),
    sa.Column("deadline_at_ms", sa.BigInteger),
)


class SqlRecords:
    """`domain.ports.Records` over SQLAlchemy."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, sandbox: Sandbox) -> None:
        """Raises Conflict when the idempotency key is taken; one of a sandbox that never started is given up."""
        key = sandbox.idempotency_key or None
        try:
            async with self._database.begin() as connection:
                if key:
                    failed = sa.and_(
                        _sandboxes.c.idempotency_key == key, _sandboxes.c.end_reason == EndReason.START_FAILED.value
                    )
                    await connection.execute(sa.update(_sandboxes).where(failed).values(idempotency_key=None))
                await connection.execute(sa.insert(_sandboxes).values(**_to_row(sandbox)))
        except IntegrityError as error:
            raise Conflict(f"idempotency key {sandbox.idempotency_key!r} is taken") from error

    async def update(self, sandbox: Sandbox) -> None:
        row = _to_row(sandbox)
        changing = (
            "state",
            "expires_at_ms",
            "image_digest",
            "end_reason",
            "end_detail",
            "ended_at_ms",
            "enforcement",
            "launch",
            "instance",
            "node",
            "network",
        )
        statement = sa.update(_sandboxes).where(_sandboxes.c.sandbox_id == sandbox.sandbox_id)
        # An ended record never changes again: an end that raced with a renewal or a start wins.
        statement = statement.where(_sandboxes.c.state != SandboxState.ENDED.value)
        async with self._database.begin() as connection:
            await connection.execute(statement.values({name: row[name] for name in changing}))

    async def rename(self, sandbox_id: str, renamed: Sandbox) -> None:
        statement = sa.update(_sandboxes).where(_sandboxes.c.sandbox_id == sandbox_id).values(**_to_row(renamed))
        try:
            async with self._database.begin() as connection:
                await connection.execute(statement)
        except IntegrityError as error:
            raise Conflict(f"sandbox {renamed.sandbox_id} was claimed before") from error

    async def get(self, sandbox_id: str) -> Sandbox | None:
        return await self._one(_sandboxes.c.sandbox_id == sandbox_id)

    async def by_key(self, idempotency_key: str) -> Sandbox | None:
        return await self._one(_sandboxes.c.idempotency_key == idempotency_key)

    async def _one(self, condition: sa.ColumnElement[bool]) -> Sandbox | None:
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(_sandboxes).where(condition))).mappings().first()
        return _from_row(dict(row)) if row else None

    async def list(self, run_id: str, include_ended: bool) -> Sequence[Sandbox]:
        statement = sa.select(_sandboxes).order_by(_sandboxes.c.created_at_ms, _sandboxes.c.sandbox_id)
        if run_id:
            statement = statement.where(_sandboxes.c.run_id == run_id)
        if not include_ended:
            statement = statement.where(_sandboxes.c.state != SandboxState.ENDED.value)
        return await self._many(statement)

    async def unended_of(self, owner: str) -> Sequence[Sandbox]:
        statement = sa.select(_sandboxes).where(
            _sandboxes.c.owner == owner, _sandboxes.c.state != SandboxState.ENDED.value
        )
        return await self._many(statement)

    async def expired(self, owner: str, now_ms: int) -> Sequence[Sandbox]:
        late = sa.or_(
            _sandboxes.c.expires_at_ms <= now_ms,
            sa.and_(_sandboxes.c.deadline_at_ms > 0, _sandboxes.c.deadline_at_ms <= now_ms),
        )
        alive = _sandboxes.c.state != SandboxState.ENDED.value
        return await self._many(sa.select(_sandboxes).where(_sandboxes.c.owner == owner, alive, late))

    async def _many(self, statement: sa.Select[Any]) -> Sequence[Sandbox]:
        async with self._database.read() as connection:
            rows = (await connection.execute(statement)).mappings().all()
        return [_from_row(dict(row)) for row in rows]

    async def prune(self, ended_before_ms: int) -> int:
        old = sa.and_(_sandboxes.c.state == SandboxState.ENDED.value, _sandboxes.c.ended_at_ms < ended_before_ms)
        async with self._database.begin() as connection:
            return int((await connection.execute(sa.delete(_sandboxes).where(old))).rowcount)


def _to_row(sandbox: Sandbox) -> dict[str, Any]:
    row = {column.name: getattr(sandbox, column.name) for column in _sandboxes.c}
    row["limits"] = asdict(sandbox.limits)
    row["enforcement"] = dict(sandbox.enforcement)
    row["state"], row["end_reason"] = sandbox.state.value, sandbox.end_reason.value
    row["network"], row["launch"] = sandbox.network.value, sandbox.launch.value
    row["idempotency_key"] = sandbox.idempotency_key or None
    return row


def _from_row(row: dict[str, Any]) -> Sandbox:
    row["limits"] = Limits(**row["limits"])
    row["state"], row["end_reason"] = SandboxState(row["state"]), EndReason(row["end_reason"])
    row["network"], row["launch"] = NetworkClass(row["network"]), LaunchType(row["launch"])
    row["idempotency_key"] = row["idempotency_key"] or ""
    return Sandbox(**row)
