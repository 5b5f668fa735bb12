"""Runs, events and steps in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.clock import Clock
from longshore_common.database import Database
from longshore_common.errors import Conflict, NotFound
from longshore_controller.domain.records import EventRecord, RunRecord, RunTask, StepRecord
from longshore_controller.domain.run_state import FINISHED, check_move
from longshore_controller.domain.stores import NewEvent, NewRun
from longshore_controller.domain.vocabulary import EventKind, RunState, StepPhase
from longshore_controller.signals import Signal
from longshore_controller.store import tables as t


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _run(row: Row[Any]) -> RunRecord:
    return RunRecord(
        run_id=row.run_id,
        name=row.name,
        state=RunState(row.state),
        state_reason=row.state_reason,
        plan_json=row.plan_json,
        plan_digest=row.plan_digest,
        seed=row.seed,
        alias=row.alias,
        step=row.step,
        total_steps=row.total_steps,
        policy_version=row.policy_version,
        incarnation=row.incarnation,
        base_digest=row.base_digest,
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
        finished_at_ms=row.finished_at_ms,
        metrics=json.loads(row.metrics_json or "{}"),
    )


def _event(row: Row[Any]) -> EventRecord:
    return EventRecord(row.sequence, row.run_id, row.at_ms, EventKind(row.kind), row.message, json.loads(row.data_json))


def _step(row: Row[Any]) -> StepRecord:
    return StepRecord(
        run_id=row.run_id,
        phase=StepPhase(row.phase),
        step=row.step,
        incarnation=row.incarnation,
        metrics=json.loads(row.metrics_json),
        seconds=json.loads(row.seconds_json),
        total_steps=row.total_steps,
        at_ms=row.at_ms,
    )


class SqlRunStore:
    """`RunStore` on SQLite or Postgres."""

    def __init__(self, database: Database, clock: Clock, changed: Signal) -> None:
        self._db = database
        self._clock = clock
        self._changed = changed

    async def create(self, run: NewRun) -> tuple[RunRecord, bool]:
        now = self._clock.now_ms()
        async with self._db.begin() as connection:
            if run.idempotency_key:
                found = await connection.execute(select(t.runs).where(t.runs.c.idempotency_key == run.idempotency_key))
                if (row := found.first()) is not None:
                    return _run(row), False
            await connection.execute(
                insert(t.runs).values(
                    run_id=run.run_id,
                    name=run.name,
                    state=RunState.PENDING,
                    plan_json=run.plan_json,
                    plan_digest=run.plan_digest,
                    seed=run.seed,
                    alias=run.alias,
                    total_steps=run.total_steps,
                    idempotency_key=run.idempotency_key or None,
                    created_at_ms=now,
                    updated_at_ms=now,
                )
            )
            await connection.execute(insert(t.run_tasks), [{"run_id": run.run_id, **vars(task)} for task in run.tasks])
            await self._add_state_event(connection, run.run_id, RunState.PENDING, "submitted")
        self._changed.notify()
        return await self.get(run.run_id), True

    async def get(self, run: str) -> RunRecord:
        async with self._db.read() as connection:
            row = await self._find(connection, run)
        return _run(row)

    async def _find(self, connection: AsyncConnection, run: str) -> Row[Any]:
        query = select(t.runs).where(or_(t.runs.c.run_id == run, t.runs.c.name == run))
        by_id = (t.runs.c.run_id == run).desc()
        row = (await connection.execute(query.order_by(by_id, t.runs.c.run_id.desc()).limit(1))).first()
        if row is None:
            raise NotFound(
                f"no run has the id or name '{run}'; list them with: longshore run list", details={"run": run}
            )
        return row

    async def page(self, size: int, before: str) -> list[RunRecord]:
        query = select(t.runs).order_by(t.runs.c.run_id.desc()).limit(size)
        if before:
            query = query.where(t.runs.c.run_id < before)
        async with self._db.read() as connection:
            return [_run(row) for row in await connection.execute(query)]

    async def in_states(self, states: Sequence[RunState]) -> list[RunRecord]:
        query = select(t.runs).where(t.runs.c.state.in_(list(states))).order_by(t.runs.c.run_id)
        async with self._db.read() as connection:
            return [_run(row) for row in await connection.execute(query)]

    async def move(self, run_id: str, target: RunState, reason: str = "") -> RunRecord:
        now = self._clock.now_ms()
        async with self._db.begin() as connection:
            run = _run(await self._find(connection, run_id))
            check_move(run_id, run.state, target)
            values = {
                "state": target,
                "state_reason": reason,
                "updated_at_ms": now,
                "finished_at_ms": now if target in FINISHED else 0,
            }
            await connection.execute(update(t.runs).where(t.runs.c.run_id == run_id).values(**values))
            await self._add_state_event(connection, run_id, target, reason)
        self._changed.notify()
        return await self.get(run_id)

    async def _add_state_event(self, connection: AsyncConnection, run_id: str, state: RunState, reason: str) -> None:
        message = state.value + (f": {reason}" if reason else "")
        await self._insert_event(connection, run_id, NewEvent(EventKind.RUN_STATE, message, {"state": state.value}))

    async def _insert_event(self, connection: AsyncConnection, run_id: str, event: NewEvent) -> None:
        await connection.execute(
            insert(t.events).values(
                run_id=run_id,
                at_ms=self._clock.now_ms(),
                kind=event.kind,
                message=event.message,
                data_json=_dump(dict(event.data)),
            )
        )

    async def new_incarnation(self, run_id: str) -> int:
        change = (
            update(t.runs)
            .where(t.runs.c.run_id == run_id)
            .values(incarnation=t.runs.c.incarnation + 1)
            .returning(t.runs.c.incarnation)
        )
        async with self._db.begin() as connection:
            return int((await connection.execute(change)).scalar_one())

    async def set_base_digest(self, run_id: str, digest: str) -> None:
        async with self._db.begin() as connection:
            await connection.execute(update(t.runs).where(t.runs.c.run_id == run_id).values(base_digest=digest))

    async def advance(self, run_id: str, step: int) -> None:
        where = and_(t.runs.c.run_id == run_id, t.runs.c.step < step)
        values = {"step": step, "policy_version": step, "updated_at_ms": self._clock.now_ms()}
        async with self._db.begin() as connection:
            await connection.execute(update(t.runs).where(where).values(**values))
        self._changed.notify()

    async def record_step(self, record: StepRecord) -> bool:
        values = {
            "run_id": record.run_id,
            "phase": record.phase.value,
            "step": record.step,
            "incarnation": record.incarnation,
            "metrics_json": _dump(record.metrics),
            "seconds_json": _dump(record.seconds),
            "total_steps": record.total_steps,
            "at_ms": record.at_ms,
        }
        key = and_(t.steps.c.run_id == record.run_id, t.steps.c.phase == record.phase, t.steps.c.step == record.step)
        async with self._db.begin() as connection:
            run = _run(await self._find(connection, record.run_id))
            if run.incarnation != record.incarnation:
                raise Conflict(
                    f"run {record.run_id}: step {record.step} was reported by incarnation {record.incarnation}, "
                    f"but {run.incarnation} is the newest; this trainer must end",
                    details={"run": record.run_id, "incarnation": str(run.incarnation)},
                )
            is_new = (await connection.execute(select(t.steps.c.step).where(key))).first() is None
            await connection.execute(self._upsert(values))
            newest = {"metrics_json": _dump(record.metrics), "updated_at_ms": record.at_ms}
            await connection.execute(update(t.runs).where(t.runs.c.run_id == record.run_id).values(**newest))
        self._changed.notify()
        return is_new

    def _upsert(self, values: dict[str, Any]) -> Any:
        make = sqlite_insert if self._db.sqlite else postgres_insert
        changed = {key: value for key, value in values.items() if key not in ("run_id", "phase", "step")}
        statement = make(t.steps).values(**values)
        return statement.on_conflict_do_update(index_elements=["run_id", "phase", "step"], set_=changed)

    async def append(self, run_id: str, event: NewEvent) -> None:
        async with self._db.begin() as connection:
            await self._insert_event(connection, run_id, event)
        self._changed.notify()

    async def events(self, run_id: str, after: int, limit: int) -> list[EventRecord]:
        where = and_(t.events.c.run_id == run_id, t.events.c.sequence > after)
        async with self._db.read() as connection:
            found = await connection.execute(select(t.events).where(where).order_by(t.events.c.sequence).limit(limit))
            return [_event(row) for row in found]

    async def steps(self, run_id: str) -> list[StepRecord]:
        query = select(t.steps).where(t.steps.c.run_id == run_id).order_by(t.steps.c.phase.desc(), t.steps.c.step)
        async with self._db.read() as connection:
            return [_step(row) for row in await connection.execute(query)]

    async def newest_step(self, run_id: str) -> StepRecord | None:
        query = (
            select(t.steps).where(t.steps.c.run_id == run_id).order_by(t.steps.c.phase, t.steps.c.step.desc()).limit(1)
        )
        async with self._db.read() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _step(row)

    async def tasks(self, run_id: str) -> list[RunTask]:
        columns = [column for column in t.run_tasks.c if column.name != "run_id"]
        query = select(*columns).where(t.run_tasks.c.run_id == run_id).order_by(t.run_tasks.c.digest)
        async with self._db.read() as connection:
            return [RunTask(**row._mapping) for row in await connection.execute(query)]

    async def save_report(self, run_id: str, report_json: str) -> None:
        async with self._db.begin() as connection:
            await connection.execute(update(t.runs).where(t.runs.c.run_id == run_id).values(report_json=report_json))

    async def report(self, run_id: str) -> str:
        async with self._db.read() as connection:
            found = await connection.execute(select(t.runs.c.report_json).where(t.runs.c.run_id == run_id))
            return str(found.scalar_one())
