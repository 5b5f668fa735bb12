"""The store on SQLite or Postgres: opens transactions, tells who waits, counts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from longshore_common.clock import Clock
from longshore_common.database import Database
from longshore_common.ids import new_id
from longshore_trajectory_store.domain.attempts import Attempt, Purpose, SealRequest
from longshore_trajectory_store.domain.batches import Batch, TakeRequest, TakeResult, make_batch
from longshore_trajectory_store.domain.changes import Changes
from longshore_trajectory_store.domain.counts import Counts
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.outcomes import DiscardReason
from longshore_trajectory_store.domain.ports import AttemptFilter, GroupFilter, Page
from longshore_trajectory_store.domain.turns import Turn
from longshore_trajectory_store.store import ledger, lifecycle, metrics, reads, statements
from longshore_trajectory_store.store.lifecycle import Change
from longshore_trajectory_store.store.rows import group_from_row, turn_from_row
from longshore_trajectory_store.store.schema import groups
from longshore_trajectory_store.store.turn_writer import TurnWriter


class SqlTrajectoryStore:
    """Implements TrajectoryStore. The schema must be migrated."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._writer = TurnWriter(database)
        self.sealed = Changes()
        self.ledger = Changes()

    async def close(self) -> None:
        """Waits for accepted appends, then closes the connections."""
        await self._writer.close()
        await self._database.close()

    async def create_group(self, group: Group, attempt_ids: Sequence[str]) -> tuple[Group, bool]:
        async with self._database.begin() as connection:
            return await lifecycle.create_group(connection, group, attempt_ids)

    async def fence(self, attempt_id: str, epoch: int) -> None:
        async with self._database.begin() as connection:
            await lifecycle.fence(connection, attempt_id, epoch)

    async def append_turn(self, turn: Turn) -> int:
        return await self._writer.append(turn)

    async def seal(self, request: SealRequest) -> tuple[Attempt, Group]:
        async with self._database.begin() as connection:
            attempt, group, change = await lifecycle.seal_attempt(connection, request, self._clock.now_ms())
        if change is not None:
            metrics.count_sealed(attempt)
            await self._tell(change)
        return attempt, group

    async def discard(self, attempt_ids: Sequence[str], reason: DiscardReason) -> int:
        if not attempt_ids:
            return 0
        async with self._database.begin() as connection:
            changes = await lifecycle.discard_attempts(connection, attempt_ids, reason, self._clock.now_ms())
        for change in changes:
            metrics.DISCARDED.labels(change.run_id, reason).inc(change.attempts)
            await self._tell(change)
        return sum(change.attempts for change in changes)

    async def get_attempt(self, attempt_id: str, with_turns: bool) -> tuple[Attempt, list[Turn]]:
        async with self._database.read() as connection:
            attempt = await statements.load_attempt(connection, attempt_id)
            rows = await reads.turn_rows(connection, {attempt_id: attempt.epoch}) if with_turns else []
        return attempt, await asyncio.to_thread(_decode, rows)

    async def list_attempts(self, where: AttemptFilter, limit: int, after: int) -> Page[Attempt]:
        async with self._database.read() as connection:
            return await reads.list_attempts(connection, where, limit, after)

    async def get_group(self, group_id: str) -> tuple[Group, list[Attempt]]:
        async with self._database.read() as connection:
            group = await statements.load_group(connection, group_id)
            return group, (await statements.members(connection, [group_id]))[group_id]

    async def list_groups(self, where: GroupFilter, limit: int | None, after: int) -> Page[Group]:
        async with self._database.read() as connection:
            return await reads.list_groups(connection, where, limit, after)

    async def take_batch(self, request: TakeRequest) -> TakeResult:
        async with self._database.begin() as connection:
            taken = await ledger.take(connection, request, new_id("batch"), self._clock.now_ms())
        if taken.swept:
            metrics.DISCARDED.labels(request.run_id, DiscardReason.STALE).inc(taken.swept)
            await self._tell(Change(request.run_id, taken.swept, True))
        if not taken.batch_id:
            return TakeResult(None, taken.available, taken.closed)
        batch = await self._load_batch(taken.batch_id, request.step, taken.group_ids)
        if taken.fresh:
            metrics.count_taken(batch)
        return TakeResult(batch, taken.available, False)

    async def _load_batch(self, batch_id: str, step: int, group_ids: Sequence[str]) -> Batch:
        async with self._database.read() as connection:
            query = sa.select(groups).where(groups.c.group_id.in_(group_ids))
            found = {row["group_id"]: row for row in (await connection.execute(query)).mappings()}
            in_group = await statements.members(connection, group_ids)
            epochs = {a.attempt_id: a.epoch for list_ in in_group.values() for a in list_ if a.trainable}
            rows = await reads.turn_rows(connection, epochs)
        ordered = [group_from_row(found[group_id]) for group_id in group_ids]
        return await asyncio.to_thread(_build, batch_id, step, ordered, in_group, rows)

    async def commit_batch(self, run_id: str, incarnation: int, step: int, batch_id: str) -> None:
        async with self._database.begin() as connection:
            await ledger.commit(connection, run_id, incarnation, step, batch_id)
        await self.ledger.notify(run_id)

    async def resume_run(self, run_id: str, incarnation: int, step: int, ledger_ids: Sequence[str]) -> tuple[int, int]:
        async with self._database.begin() as connection:
            released, stale = await ledger.resume(
                connection, run_id, incarnation, step, ledger_ids, self._clock.now_ms()
            )
        await self._tell(Change(run_id, stale, True))
        return released, stale

    async def close_run(self, run_id: str, discard_open: bool) -> int:
        async with self._database.begin() as connection:
            change = await ledger.close(connection, run_id, discard_open, self._clock.now_ms())
        metrics.DISCARDED.labels(run_id, DiscardReason.CANCELLED).inc(change.attempts)
        await self._tell(change)
        return change.attempts

    async def counts(self, run_id: str, purpose: Purpose | None, panel: str) -> Counts:
        async with self._database.read() as connection:
            return await reads.counts(connection, run_id, purpose, panel)

    async def sealed_after(self, run_id: str, after: int, limit: int) -> list[tuple[Attempt, Group]]:
        async with self._database.read() as connection:
            return await reads.sealed_after(connection, run_id, after, limit)

    async def _tell(self, change: Change) -> None:
        if change.attempts:
            await self.sealed.notify(change.run_id)
        if change.groups:
            await self.ledger.notify(change.run_id)


def _decode(rows: Sequence[RowMapping]) -> list[Turn]:
    return [turn_from_row(row) for row in rows]


def _build(
    batch_id: str, step: int, ordered: Sequence[Group], in_group: dict[str, list[Attempt]], rows: Sequence[RowMapping]
) -> Batch:
    turns: dict[str, list[Turn]] = defaultdict(list)
    for turn in _decode(rows):
        turns[turn.attempt_id].append(turn)
    return make_batch(batch_id, step, ordered, in_group, turns)
