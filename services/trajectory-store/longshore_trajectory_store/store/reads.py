"""Read-only queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose
from longshore_trajectory_store.domain.counts import CountRow, Counts, count
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.ports import AttemptFilter, GroupFilter, Page
from longshore_trajectory_store.store import statements as sql
from longshore_trajectory_store.store.rows import attempt_from_row, group_from_row
from longshore_trajectory_store.store.schema import attempts, groups, turns


async def turn_rows(connection: AsyncConnection, epochs: dict[str, int]) -> list[RowMapping]:
    """Raw rows of the turns of these attempts in the given epochs; decompress them off the loop."""
    found: list[RowMapping] = []
    for part in sql.chunks(sorted(epochs)):
        query = sa.select(turns).where(turns.c.attempt_id.in_(part)).order_by(turns.c.attempt_id, turns.c.turn)
        rows = (await connection.execute(query)).mappings()
        found += [row for row in rows if row["epoch"] == epochs[row["attempt_id"]]]
    return found


async def list_attempts(connection: AsyncConnection, where: AttemptFilter, limit: int, after: int) -> Page[Attempt]:
    """One page, in order of creation."""
    query = sa.select(attempts).where(attempts.c.number > after).order_by(attempts.c.number).limit(limit + 1)
    for column, value in _conditions(attempts, where, ("run_id", "purpose", "panel", "group_id", "state")):
        query = query.where(column == value)
    rows = (await connection.execute(query)).mappings().all()
    more = len(rows) > limit
    return Page([attempt_from_row(row) for row in rows[:limit]], rows[limit - 1]["number"] if more else 0)


async def list_groups(connection: AsyncConnection, where: GroupFilter, limit: int | None, after: int) -> Page[Group]:
    """One page, in order of creation."""
    query = sa.select(groups).where(groups.c.number > after).order_by(groups.c.number)
    query = query if limit is None else query.limit(limit + 1)
    for column, value in _conditions(groups, where, ("run_id", "purpose", "panel")):
        query = query.where(column == value)
    if where.step is not None:
        query = query.where(groups.c.step == where.step)
    found = [group_from_row(row) for row in (await connection.execute(query)).mappings()]
    if limit is None or len(found) <= limit:
        return Page(found, 0)
    return Page(found[:limit], found[limit - 1].number)


def _conditions(table: sa.Table, where: object, names: Sequence[str]) -> list[tuple[sa.Column[Any], Any]]:
    values = ((table.c[name], getattr(where, name)) for name in names)
    return [(column, value) for column, value in values if value]


async def counts(connection: AsyncConnection, run_id: str, purpose: Purpose | None, panel: str) -> Counts:
    """Numbers of attempts by outcome, from one statement: a consistent picture."""
    retries = sa.func.sum(sa.case((attempts.c.epoch > 1, attempts.c.epoch - 1), else_=0))
    keys = (groups.c.refill, attempts.c.outcome_kind, attempts.c.outcome_label)
    query = (
        sa.select(*keys, sa.func.count(), retries)
        .join(groups, groups.c.group_id == attempts.c.group_id)
        .where(attempts.c.run_id == run_id)
        .group_by(*keys)
    )
    if purpose is not None:
        query = query.where(attempts.c.purpose == purpose)
    if panel:
        query = query.where(attempts.c.panel == panel)
    rows = (await connection.execute(query)).all()
    return count(CountRow(refill, kind, label, int(n), int(retried)) for refill, kind, label, n, retried in rows)


async def sealed_after(connection: AsyncConnection, run_id: str, after: int, limit: int) -> list[tuple[Attempt, Group]]:
    """In order of the sequence."""
    query = sa.select(attempts).where(attempts.c.sequence > after, attempts.c.state == AttemptState.SEALED)
    if run_id:
        query = query.where(attempts.c.run_id == run_id)
    rows = (await connection.execute(query.order_by(attempts.c.sequence).limit(limit))).mappings()
    found = [attempt_from_row(row) for row in rows]
    by_id: dict[str, Group] = {}
    for part in sql.chunks(sorted({attempt.group_id for attempt in found})):
        query = sa.select(groups).where(groups.c.group_id.in_(part))
        by_id.update({row["group_id"]: group_from_row(row) for row in (await connection.execute(query)).mappings()})
    return [(attempt, by_id[attempt.group_id]) for attempt in found]
