"""The gateway's state in SQLite or Postgres."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.database import Database
from longshore_inference_gateway.domain.models import (
    AliasRecord,
    ModelIdentity,
    PolicyKind,
    PolicyState,
    PolicyVersion,
    Sampling,
    SessionRecord,
    SessionTotals,
)
from longshore_inference_gateway.store.tables import aliases, policies, sessions


class SqlGatewayStore:
    """A GatewayStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_session(self, session: SessionRecord) -> bool:
        """Inserts; gives whether the attempt had a session in this epoch before."""
        earlier = sa.select(sessions.c.session_id).where(
            sessions.c.attempt_id == session.attempt_id, sessions.c.lease_epoch == session.lease_epoch
        )
        async with self._database.begin() as connection:
            seen = (await connection.execute(earlier.limit(1))).first() is not None
            await connection.execute(sa.insert(sessions).values(**_session_row(session)))
        return seen

    async def close_session(self, session: SessionRecord) -> None:
        """Stores the end and the totals."""
        totals = json.dumps(asdict(session.totals)) if session.totals is not None else None
        update = (
            sa.update(sessions)
            .where(sessions.c.session_id == session.session_id)
            .values(closed_at_ms=session.closed_at_ms, totals=totals)
        )
        async with self._database.begin() as connection:
            await connection.execute(update)

    async def find_session(self, session_id: str) -> SessionRecord | None:
        """By id."""
        async with self._database.read() as connection:
            query = sa.select(sessions).where(sessions.c.session_id == session_id)
            row = (await connection.execute(query)).mappings().first()
        return _session(dict(row)) if row is not None else None

    async def open_sessions(self) -> list[SessionRecord]:
        """All that are not closed, oldest first."""
        query = sa.select(sessions).where(sessions.c.closed_at_ms.is_(None)).order_by(sessions.c.opened_at_ms)
        async with self._database.read() as connection:
            return [_session(dict(row)) for row in (await connection.execute(query)).mappings()]

    async def aliases(self) -> list[AliasRecord]:
        """All."""
        async with self._database.read() as connection:
            rows = (await connection.execute(sa.select(aliases).order_by(aliases.c.alias))).mappings()
            return [
                AliasRecord(r["alias"], r["run_id"], r["current_version"], r["incarnation"], bool(r["retired"]))
                for r in rows
            ]

    async def policies(self, alias: str | None = None) -> list[PolicyVersion]:
        """By alias and version."""
        query = sa.select(policies).order_by(policies.c.alias, policies.c.version)
        if alias is not None:
            query = query.where(policies.c.alias == alias)
        async with self._database.read() as connection:
            return [_policy(dict(row)) for row in (await connection.execute(query)).mappings()]

    async def save(self, alias: AliasRecord, *versions: PolicyVersion) -> None:
        """Alias and versions in one transaction."""
        async with self._database.begin() as connection:
            await _upsert(connection, aliases, ("alias",), asdict(alias))
            for version in versions:
                await _upsert(connection, policies, ("alias", "version"), _policy_row(version))

    async def close(self) -> None:
        """Closes connections."""
        await self._database.close()


async def _upsert(connection: AsyncConnection, table: sa.Table, keys: tuple[str, ...], row: Mapping[str, Any]) -> None:
    where = [table.c[key] == row[key] for key in keys]
    result = await connection.execute(sa.update(table).where(*where).values(**row))
    if result.rowcount == 0:
        await connection.execute(sa.insert(table).values(**row))


def _policy_row(version: PolicyVersion) -> dict[str, Any]:
    row: dict[str, Any] = asdict(version)
    identity: dict[str, Any] = row.pop("identity")
    return row | identity


def _policy(row: Mapping[str, Any]) -> PolicyVersion:
    return PolicyVersion(
        alias=row["alias"],
        version=row["version"],
        kind=PolicyKind(row["kind"]),
        state=PolicyState(row["state"]),
        uri=row["uri"],
        digest=row["digest"],
        incarnation=row["incarnation"],
        published_at_ms=row["published_at_ms"],
        identity=ModelIdentity(row["base_digest"], row["tokenizer_digest"], row["template_digest"]),
        detail=row["detail"],
    )


def _session_row(session: SessionRecord) -> dict[str, Any]:
    row = {name: getattr(session, name) for name in SessionRecord.__slots__}
    row["sampling"] = json.dumps(asdict(session.sampling))
    row["totals"] = json.dumps(asdict(session.totals)) if session.totals is not None else None
    return row


def _session(row: Mapping[str, Any]) -> SessionRecord:
    sampling = Sampling(**json.loads(row["sampling"]))
    totals = SessionTotals(**json.loads(row["totals"])) if row["totals"] else None
    return SessionRecord(**{**row, "sampling": sampling, "totals": totals})
