"""Loads, locks and writes that several transactions share.

Locks are taken in one order everywhere (run, groups by number, attempts by id, seal sequence), so that transactions of
several replicas on Postgres wait for each other instead of deadlocking. On SQLite a transaction is alone anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.errors import NotFound
from longshore_trajectory_store.domain.attempts import Attempt, discard
from longshore_trajectory_store.domain.batches import Run
from longshore_trajectory_store.domain.groups import Group, settle
from longshore_trajectory_store.domain.outcomes import DiscardReason
from longshore_trajectory_store.store.rows import attempt_from_row, attempt_to_row, group_from_row, run_from_row
from longshore_trajectory_store.store.schema import attempts, groups, runs, sequences

# SQLite and Postgres both bound the number of parameters of a statement (32k); lists are read in pieces.
CHUNK = 5000


def upsert(connection: AsyncConnection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that can say ON CONFLICT, in the connection's dialect."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def chunks(values: Sequence[str]) -> Iterable[Sequence[str]]:
    """The values in pieces of CHUNK."""
    return (values[i : i + CHUNK] for i in range(0, len(values), CHUNK))


async def lock_run(connection: AsyncConnection, run_id: str) -> Run:
    """The run, made when it is new, locked until the transaction ends."""
    fresh = {"run_id": run_id, "incarnation": 0, "closed": False, "committed_step": 0}
    resume = {"resume_digest": "", "resume_step": 0, "groups_released": 0, "attempts_stale": 0}
    await connection.execute(upsert(connection, runs).values(**fresh, **resume).on_conflict_do_nothing())
    found = await connection.execute(sa.select(runs).where(runs.c.run_id == run_id).with_for_update())
    return run_from_row(found.mappings().one())


async def update_run(connection: AsyncConnection, run_id: str, **values: Any) -> None:
    """Sets columns of a run."""
    await connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**values))


async def load_attempt(connection: AsyncConnection, attempt_id: str, *, lock: bool = False) -> Attempt:
    """Raises NotFound."""
    query = sa.select(attempts).where(attempts.c.attempt_id == attempt_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no attempt {attempt_id} in the trajectory store: create its group first")
    return attempt_from_row(row)


async def find_group(connection: AsyncConnection, group_id: str, *, lock: bool = False) -> Group | None:
    """The group, or None."""
    query = sa.select(groups).where(groups.c.group_id == group_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    return None if row is None else group_from_row(row)


async def load_group(connection: AsyncConnection, group_id: str, *, lock: bool = False) -> Group:
    """Raises NotFound."""
    group = await find_group(connection, group_id, lock=lock)
    if group is None:
        raise NotFound(f"no group {group_id} in the trajectory store")
    return group


async def lock_groups(connection: AsyncConnection, where: sa.ColumnElement[bool]) -> list[Group]:
    """The matching groups in order of creation, locked."""
    rows = await connection.execute(sa.select(groups).where(where).order_by(groups.c.number).with_for_update())
    return [group_from_row(row) for row in rows.mappings()]


async def members(
    connection: AsyncConnection, group_ids: Sequence[str], *, lock: bool = False
) -> dict[str, list[Attempt]]:
    """Attempts by group, in order of their index."""
    found: dict[str, list[Attempt]] = {group_id: [] for group_id in group_ids}
    for part in chunks(group_ids):
        query = sa.select(attempts).where(attempts.c.group_id.in_(part))
        query = query.order_by(attempts.c.attempt_id).with_for_update() if lock else query
        for row in (await connection.execute(query)).mappings():
            attempt = attempt_from_row(row)
            found[attempt.group_id].append(attempt)
    for list_ in found.values():
        list_.sort(key=lambda attempt: attempt.index)
    return found


async def write_attempts(connection: AsyncConnection, changed: Sequence[Attempt]) -> list[Attempt]:
    """Stores fixed attempts under the next sequence numbers, and returns them with these.

    The sequence row stays locked until the commit: who reads number n has all before it.
    """
    if not changed:
        return []
    bump = sa.update(sequences).where(sequences.c.name == "sealed").values(value=sequences.c.value + len(changed))
    last = (await connection.execute(bump.returning(sequences.c.value))).scalar_one()
    numbered = [replace(a, sequence=last - len(changed) + 1 + i) for i, a in enumerate(changed)]
    for attempt in numbered:
        row = attempt_to_row(attempt)
        await connection.execute(sa.update(attempts).where(attempts.c.attempt_id == attempt.attempt_id).values(**row))
    return numbered


async def set_group_state(connection: AsyncConnection, group: Group, **values: Any) -> None:
    """Sets columns of a group."""
    await connection.execute(sa.update(groups).where(groups.c.group_id == group.group_id).values(**values))


async def discard_in_group(
    connection: AsyncConnection,
    group: Group,
    all_attempts: list[Attempt],
    ids: set[str],
    reason: DiscardReason,
    now: int,
) -> tuple[Group, int]:
    """Discards these attempts of a locked group and settles it: (the group, how many were discarded in all)."""
    changed = [discard(a, reason, now) for a in all_attempts if a.attempt_id in ids]
    settled, also = await settle_group(connection, group, _merged(all_attempts, changed), now)
    await write_attempts(connection, changed)
    return settled, len(changed) + also


async def settle_group(
    connection: AsyncConnection, group: Group, all_attempts: list[Attempt], now: int
) -> tuple[Group, int]:
    """Stores the state that a locked group has now: (the group, how many attempts it dragged into stale)."""
    settlement = settle(group, all_attempts)
    also = [discard(a, DiscardReason.STALE, now) for a in all_attempts if a.attempt_id in settlement.also_stale]
    await write_attempts(connection, also)
    if settlement.state is group.state:
        return group, len(also)
    await set_group_state(connection, group, state=settlement.state)
    return replace(group, state=settlement.state), len(also)


def _merged(before: list[Attempt], changed: Sequence[Attempt]) -> list[Attempt]:
    by_id = {attempt.attempt_id: attempt for attempt in changed}
    return [by_id.get(attempt.attempt_id, attempt) for attempt in before]
