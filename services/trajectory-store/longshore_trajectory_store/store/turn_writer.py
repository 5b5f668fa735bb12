"""Appends turns by group commit: what arrives while a transaction runs goes into the next one, and nobody is answered
before the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.database import Database
from longshore_common.errors import Conflict, LongshoreError, NotFound
from longshore_trajectory_store.domain.attempts import Attempt, check_epoch, check_open
from longshore_trajectory_store.domain.turns import Turn, admitted, check_key
from longshore_trajectory_store.store import metrics
from longshore_trajectory_store.store.rows import attempt_from_row, turn_to_row
from longshore_trajectory_store.store.schema import attempts, turns
from longshore_trajectory_store.store.statements import upsert

Key = tuple[str, int, int]

# Compressing and hashing this many bytes takes about a millisecond; more would hold up the loop.
_INLINE_BYTES = 200_000
_MAX_BATCH = 256
_MAX_BATCH_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Pending:
    row: dict[str, Any]
    done: asyncio.Future[int]

    @property
    def key(self) -> Key:
        return self.row["attempt_id"], self.row["epoch"], self.row["turn"]

    @property
    def size(self) -> int:
        return sum(len(self.row[name]) for name in ("arrays", "request_zst", "response_zst", "tools_zst"))


class TurnWriter:
    """One per store. Its task exists only while there is something to write."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: deque[_Pending] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, turn: Turn) -> int:
        """The turn's number, once it is committed. Raises as TrajectoryStore.append_turn."""
        started = time.monotonic()
        check_key(turn)
        kept = admitted(turn)
        size = (
            4 * (kept.prompt_ids.size + 2 * kept.completion_ids.size) + len(kept.request_zst) + len(kept.response_zst)
        )
        row = turn_to_row(kept) if size <= _INLINE_BYTES else await asyncio.to_thread(turn_to_row, kept)
        pending = _Pending(row, asyncio.get_running_loop().create_future())
        self._queue.append(pending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        number = await pending.done
        metrics.APPEND_SECONDS.observe(time.monotonic() - started)
        metrics.TURNS.labels(kept.status).inc()
        return number

    async def close(self) -> None:
        """Waits for what was accepted."""
        if self._task is not None:
            await self._task

    async def _drain(self) -> None:
        while self._queue:
            batch = self._next_batch()
            metrics.APPEND_BATCH.observe(len(batch))
            await self._write(batch)

    def _next_batch(self) -> list[_Pending]:
        batch = [self._queue.popleft()]
        size = batch[0].size
        while self._queue and len(batch) < _MAX_BATCH and size + self._queue[0].size <= _MAX_BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += batch[-1].size
        return batch

    async def _write(self, batch: list[_Pending]) -> None:
        try:
            async with self._database.begin() as connection:
                answers = await _insert(connection, batch)
        except Exception as error:  # noqa: BLE001  (edge of a task: every waiter must be told, whatever it was)
            answers = [error] * len(batch)
        for pending, answer in zip(batch, answers, strict=True):
            if pending.done.done():
                continue
            if isinstance(answer, int):
                pending.done.set_result(answer)
            else:
                pending.done.set_exception(answer)


async def _insert(connection: AsyncConnection, batch: Sequence[_Pending]) -> list[int | Exception]:
    """One answer per pending turn: its number, or why it was refused. Others of the batch are not affected."""
    known = await _lock_attempts(connection, sorted({pending.key[0] for pending in batch}))
    answers: list[int | Exception | None] = [_refusal(known, pending) for pending in batch]
    fresh: dict[Key, _Pending] = {}
    for pending, answer in zip(batch, answers, strict=True):
        if answer is None:
            fresh.setdefault(pending.key, pending)
    await _raise_epochs(connection, known, fresh)
    numbers = await _insert_rows(connection, [pending.row for pending in fresh.values()])
    stored = await _stored(connection, [key for key in fresh if key not in numbers])
    for i, pending in enumerate(batch):
        if answers[i] is None:
            mine = fresh[pending.key].row
            number, row = (numbers[pending.key], mine) if pending.key in numbers else stored[pending.key]
            answers[i] = number if _same(row, pending.row) else _other_content(pending)
    return [answer for answer in answers if answer is not None]


async def _lock_attempts(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, Attempt]:
    """A shared lock: a Seal of the attempt waits until these turns are committed, and sees them."""
    query = sa.select(attempts).where(attempts.c.attempt_id.in_(ids)).order_by(attempts.c.attempt_id)
    rows = (await connection.execute(query.with_for_update(read=True))).mappings()
    return {row["attempt_id"]: attempt_from_row(row) for row in rows}


def _refusal(known: dict[str, Attempt], pending: _Pending) -> LongshoreError | None:
    attempt_id, epoch, turn = pending.key
    if attempt_id not in known:
        return NotFound(f"no attempt {attempt_id} in the trajectory store for turn {turn}: create its group first")
    try:
        check_epoch(known[attempt_id], epoch, f"AppendTurn {turn}")
        check_open(known[attempt_id], f"AppendTurn {turn}")
    except LongshoreError as error:
        metrics.REFUSED.labels("append").inc()
        return error
    return None


async def _raise_epochs(connection: AsyncConnection, known: dict[str, Attempt], fresh: dict[Key, _Pending]) -> None:
    newest: dict[str, int] = {}
    for attempt_id, epoch, _turn in fresh:
        newest[attempt_id] = max(epoch, newest.get(attempt_id, 0))
    for attempt_id, epoch in newest.items():
        if epoch > known[attempt_id].epoch:
            await connection.execute(sa.update(attempts).where(attempts.c.attempt_id == attempt_id).values(epoch=epoch))


async def _insert_rows(connection: AsyncConnection, rows: list[dict[str, Any]]) -> dict[Key, int]:
    """Numbers of the rows that were not there yet."""
    if not rows:
        return {}
    statement = upsert(connection, turns).on_conflict_do_nothing(index_elements=["attempt_id", "epoch", "turn"])
    returning = statement.returning(turns.c.number, turns.c.attempt_id, turns.c.epoch, turns.c.turn)
    made = (await connection.execute(returning, rows)).all()
    metrics.TURN_BYTES.inc(sum(len(row["arrays"]) + len(row["request_zst"]) + len(row["response_zst"]) for row in rows))
    return {(row.attempt_id, row.epoch, row.turn): row.number for row in made}


async def _stored(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, tuple[int, dict[str, Any]]]:
    found: dict[Key, tuple[int, dict[str, Any]]] = {}
    for attempt_id, epoch, turn in keys:
        query = sa.select(turns.c.number, turns.c.call_digest, turns.c.parent_turn).where(
            turns.c.attempt_id == attempt_id, turns.c.epoch == epoch, turns.c.turn == turn
        )
        row = (await connection.execute(query)).mappings().one()
        found[attempt_id, epoch, turn] = (row["number"], dict(row))
    return found


def _same(stored: dict[str, Any], given: dict[str, Any]) -> bool:
    return bool(stored["call_digest"] == given["call_digest"] and stored["parent_turn"] == given["parent_turn"])


def _other_content(pending: _Pending) -> Conflict:
    attempt_id, epoch, turn = pending.key
    metrics.REFUSED.labels("append").inc()
    return Conflict(
        f"turn {turn} of attempt {attempt_id}, epoch {epoch}, is stored with other content: a captured turn never "
        "changes; give a new call a new turn"
    )
