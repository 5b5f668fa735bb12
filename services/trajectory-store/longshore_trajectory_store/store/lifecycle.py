"""Transactions on groups and attempts: create, fence, seal, discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.errors import Conflict, NotFound
from longshore_trajectory_store.domain.attempts import (
    Attempt,
    AttemptState,
    Purpose,
    SealRequest,
    check_epoch,
    check_open,
    discardable,
    is_repeat,
    seal,
)
from longshore_trajectory_store.domain.groups import FROZEN, Group, check_same, check_spec
from longshore_trajectory_store.domain.outcomes import DiscardReason
from longshore_trajectory_store.domain.turns import TurnSummary
from longshore_trajectory_store.store import statements as sql
from longshore_trajectory_store.store.rows import attempt_to_row, group_to_row, summary_from_row
from longshore_trajectory_store.store.schema import attempts, groups, turns

_SUMMARY = [
    column for column in turns.c if column.name not in ("arrays", "request_zst", "response_zst", "tools_zst")
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction changed in a run: whom to wake, what to count."""

    run_id: str
    attempts: int
    groups: bool


async def create_group(connection: AsyncConnection, group: Group, attempt_ids: Sequence[str]) -> tuple[Group, bool]:
    """See TrajectoryStore.create_group."""
    check_spec(group, attempt_ids)
    run = await sql.lock_run(connection, group.run_id)
    existing = await sql.find_group(connection, group.group_id)
    if existing is not None:
        check_same(existing, group)
        return existing, False
    if run.closed and group.purpose is Purpose.TRAIN:
        raise Conflict(f"run {group.run_id} is closed: no training group {group.group_id}; resume the run first")
    number = await connection.execute(sa.insert(groups).values(**group_to_row(group)).returning(groups.c.number))
    opened = [
        Attempt(
            attempt_id=attempt_id,
            group_id=group.group_id,
            run_id=group.run_id,
            index=index,
            purpose=group.purpose,
            panel=group.panel,
            task_digest=group.task_digest,
            seed=group.seeds[index],
            created_at_ms=group.created_at_ms,
        )
        for index, attempt_id in enumerate(group.attempt_ids)
    ]
    await connection.execute(sa.insert(attempts), [attempt_to_row(attempt) for attempt in opened])
    return replace(group, number=number.scalar_one()), True


async def fence(connection: AsyncConnection, attempt_id: str, epoch: int) -> None:
    """See TrajectoryStore.fence."""
    attempt = await sql.load_attempt(connection, attempt_id, lock=True)
    check_epoch(attempt, epoch, "Fence")
    check_open(attempt, "Fence")
    if epoch > attempt.epoch:
        await connection.execute(sa.update(attempts).where(attempts.c.attempt_id == attempt_id).values(epoch=epoch))


async def seal_attempt(
    connection: AsyncConnection, request: SealRequest, now: int
) -> tuple[Attempt, Group, Change | None]:
    """See TrajectoryStore.seal. No change: it was the same request again."""
    group_id = (await sql.load_attempt(connection, request.attempt_id)).group_id
    group = await sql.load_group(connection, group_id, lock=True)
    attempt = await sql.load_attempt(connection, request.attempt_id, lock=True)
    if is_repeat(attempt, request):
        return attempt, group, None
    siblings = (await sql.members(connection, [group_id]))[group_id]
    others = [a for a in siblings if a.attempt_id != attempt.attempt_id and a.state is AttemptState.SEALED]
    captured = await turn_summaries(connection, request.attempt_id, request.lease_epoch)
    sealed = seal(attempt, request, captured, others, now)
    (sealed,) = await sql.write_attempts(connection, [sealed])
    after = [sealed if a.attempt_id == sealed.attempt_id else a for a in siblings]
    settled, also = await sql.settle_group(connection, group, after, now)
    return sealed, settled, Change(group.run_id, 1 + also, settled.state is not group.state)


async def turn_summaries(connection: AsyncConnection, attempt_id: str, epoch: int) -> list[TurnSummary]:
    """The stored turns of one epoch, without their arrays."""
    query = sa.select(*_SUMMARY).where(turns.c.attempt_id == attempt_id, turns.c.epoch == epoch)
    rows = (await connection.execute(query.order_by(turns.c.turn))).mappings()
    return [summary_from_row(row) for row in rows]


async def discard_attempts(
    connection: AsyncConnection, attempt_ids: Sequence[str], reason: DiscardReason, now: int
) -> list[Change]:
    """See TrajectoryStore.discard: one change per group that held any of them."""
    wanted = set(attempt_ids)
    group_of: dict[str, str] = {}
    for part in sql.chunks(sorted(wanted)):
        query = sa.select(attempts.c.attempt_id, attempts.c.group_id).where(attempts.c.attempt_id.in_(part))
        group_of.update({row.attempt_id: row.group_id for row in await connection.execute(query)})
    missing = sorted(wanted - group_of.keys())
    if missing:
        raise NotFound(f"no attempt {missing[0]} in the trajectory store: nothing was discarded")
    locked: list[Group] = []
    for part in sql.chunks(sorted(set(group_of.values()))):
        locked += await sql.lock_groups(connection, groups.c.group_id.in_(part))
    in_group = await sql.members(connection, [group.group_id for group in locked], lock=True)
    return [await _discard_one(connection, g, in_group[g.group_id], wanted, reason, now) for g in locked]


async def _discard_one(
    connection: AsyncConnection,
    group: Group,
    all_attempts: list[Attempt],
    wanted: set[str],
    reason: DiscardReason,
    now: int,
) -> Change:
    untrained = group.state not in FROZEN
    ids = {a.attempt_id for a in all_attempts if a.attempt_id in wanted and discardable(a, reason, untrained)}
    if not ids:
        return Change(group.run_id, 0, False)
    settled, count = await sql.discard_in_group(connection, group, all_attempts, ids, reason, now)
    return Change(group.run_id, count, settled.state is not group.state)
