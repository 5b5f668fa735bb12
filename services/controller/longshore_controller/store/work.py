"""Groups and attempts in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.clock import Clock
from longshore_common.database import Database
from longshore_controller.domain.planner import BrokenSlot, GroupPlan
from longshore_controller.domain.records import GroupInfo, SealedAttempt, StepTimes, WorkTotals
from longshore_controller.domain.vocabulary import UNUSABLE_GROUPS, GroupState, LeaseState, Purpose
from longshore_controller.signals import Signal
from longshore_controller.store import tables as t

_PRIORITY = {Purpose.EVAL: 1, Purpose.TRAIN: 0}
_LIVE = (LeaseState.QUEUED, LeaseState.LEASED)


class SqlWorkStore:
    """`WorkStore` on SQLite or Postgres."""

    def __init__(self, database: Database, clock: Clock, work_added: Signal) -> None:
        self._db = database
        self._clock = clock
        self._work_added = work_added

    async def add_groups(self, plans: Sequence[GroupPlan]) -> None:
        if not plans:
            return
        async with self._db.begin() as connection:
            new = await self._unknown(connection, plans)
            if not new:
                return
            await connection.execute(insert(t.groups), [self._group_row(plan) for plan in new])
            await connection.execute(insert(t.attempts), [row for plan in new for row in _attempt_rows(plan)])
            for plan in new:
                if plan.refill:
                    await self._supersede(connection, plan)
        self._work_added.notify()

    async def _unknown(self, connection: AsyncConnection, plans: Sequence[GroupPlan]) -> list[GroupPlan]:
        ids = [plan.group_id for plan in plans]
        known = set(
            (await connection.execute(select(t.groups.c.group_id).where(t.groups.c.group_id.in_(ids)))).scalars()
        )
        return [plan for plan in plans if plan.group_id not in known]

    async def _supersede(self, connection: AsyncConnection, plan: GroupPlan) -> None:
        older = and_(
            t.groups.c.run_id == plan.run_id,
            t.groups.c.purpose == plan.purpose,
            t.groups.c.panel == plan.panel,
            t.groups.c.ordinal == plan.ordinal,
            t.groups.c.refill < plan.refill,
        )
        await connection.execute(update(t.groups).where(older).values(superseded=True))

    def _group_row(self, plan: GroupPlan) -> dict[str, Any]:
        return {
            "group_id": plan.group_id,
            "run_id": plan.run_id,
            "purpose": plan.purpose.value,
            "panel": plan.panel,
            "task_digest": plan.task_digest,
            "state": GroupState.OPEN.value,
            "ordinal": plan.ordinal,
            "refill": plan.refill,
            "step": plan.step,
            "size": plan.size,
            "pinned_version": plan.pinned_version,
            "created_at_ms": self._clock.now_ms(),
        }

    async def next_ordinal(self, run_id: str) -> int:
        query = select(func.max(t.groups.c.ordinal)).where(
            t.groups.c.run_id == run_id, t.groups.c.purpose == Purpose.TRAIN
        )
        async with self._db.read() as connection:
            newest = (await connection.execute(query)).scalar()
        return 0 if newest is None else int(newest) + 1

    async def broken_slots(self, run_id: str) -> list[BrokenSlot]:
        query = (
            select(t.groups.c.ordinal, t.groups.c.refill)
            .where(
                t.groups.c.run_id == run_id,
                t.groups.c.purpose == Purpose.TRAIN,
                t.groups.c.state.in_(list(UNUSABLE_GROUPS)),
                t.groups.c.superseded.is_(False),
            )
            .order_by(t.groups.c.ordinal)
        )
        async with self._db.read() as connection:
            return [BrokenSlot(row.ordinal, row.refill) for row in await connection.execute(query)]

    async def panel_progress(self, run_id: str, panel: str) -> tuple[int, int]:
        query = (
            select(t.groups.c.state, func.count())
            .where(t.groups.c.run_id == run_id, t.groups.c.panel == panel, t.groups.c.purpose == Purpose.EVAL)
            .group_by(t.groups.c.state)
        )
        async with self._db.read() as connection:
            counts = {row[0]: row[1] for row in await connection.execute(query)}
        return sum(counts.values()), counts.get(GroupState.OPEN, 0)

    async def panels(self, run_id: str) -> list[str]:
        query = (
            select(t.groups.c.panel).where(t.groups.c.run_id == run_id, t.groups.c.purpose == Purpose.EVAL).distinct()
        )
        async with self._db.read() as connection:
            return sorted((await connection.execute(query)).scalars())

    async def sealed_sequence(self, run_id: str) -> int:
        async with self._db.read() as connection:
            found = await connection.execute(select(t.runs.c.sealed_sequence).where(t.runs.c.run_id == run_id))
            return int(found.scalar_one())

    async def apply_sealed(self, run_id: str, sealed: Sequence[SealedAttempt]) -> None:
        if not sealed:
            return
        change = (
            update(t.attempts)
            .where(t.attempts.c.attempt_id == bindparam("id"))
            .values({name: bindparam(f"new_{name}") for name in _SEALED_COLUMNS} | {"state": LeaseState.DONE})
        )
        rows = [{"id": s.attempt_id, **{f"new_{name}": getattr(s, name) for name in _SEALED_COLUMNS}} for s in sealed]
        states = {s.group_id: s.group_state for s in sealed}
        newest = max(s.sequence for s in sealed)
        async with self._db.begin() as connection:
            await connection.execute(change, rows)
            await _set_states(connection, states)
            await connection.execute(
                update(t.runs)
                .where(t.runs.c.run_id == run_id, t.runs.c.sealed_sequence < newest)
                .values(sealed_sequence=newest)
            )

    async def set_group_states(self, groups: Sequence[GroupInfo]) -> None:
        if groups:
            async with self._db.begin() as connection:
                await _set_states(connection, {group.group_id: group.state for group in groups})

    async def finished_open_groups(self, run_id: str) -> list[str]:
        live = (
            select(t.attempts.c.queue_id)
            .where(t.attempts.c.group_id == t.groups.c.group_id, t.attempts.c.state.in_(_LIVE))
            .exists()
        )
        query = select(t.groups.c.group_id).where(
            t.groups.c.run_id == run_id, t.groups.c.state == GroupState.OPEN, ~live
        )
        async with self._db.read() as connection:
            return list((await connection.execute(query)).scalars())

    async def requeue(self, attempt_ids: Sequence[str]) -> None:
        await self._set(attempt_ids, {"state": LeaseState.QUEUED, "worker_id": "", "expires_at_ms": 0})
        self._work_added.notify()

    async def mark_done(self, attempt_ids: Sequence[str]) -> None:
        await self._set(attempt_ids, {"state": LeaseState.DONE})

    async def _set(self, attempt_ids: Sequence[str], values: dict[str, Any]) -> None:
        where = t.attempts.c.attempt_id.in_(list(attempt_ids))
        async with self._db.begin() as connection:
            await connection.execute(update(t.attempts).where(where).values(**values))

    async def unfinished_attempts(self, run_id: str, purpose: Purpose) -> list[str]:
        query = (
            select(t.attempts.c.attempt_id)
            .join(t.groups, t.groups.c.group_id == t.attempts.c.group_id)
            .where(t.attempts.c.run_id == run_id, t.groups.c.purpose == purpose, t.attempts.c.state.in_(_LIVE))
        )
        async with self._db.read() as connection:
            return list((await connection.execute(query)).scalars())

    async def queued_tasks(self, run_id: str) -> dict[str, int]:
        query = (
            select(t.groups.c.task_digest, func.count())
            .join(t.groups, t.groups.c.group_id == t.attempts.c.group_id)
            .where(t.attempts.c.run_id == run_id, t.attempts.c.state == LeaseState.QUEUED)
            .group_by(t.groups.c.task_digest)
        )
        async with self._db.read() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}

    async def step_times(self, run_id: str) -> dict[int, StepTimes]:
        leased, sealed = t.attempts.c.first_leased_at_ms, t.attempts.c.sealed_at_ms
        query = (
            select(t.groups.c.step, func.min(leased), func.max(sealed), func.sum(t.attempts.c.verifier_s))
            .join(t.groups, t.groups.c.group_id == t.attempts.c.group_id)
            .where(t.attempts.c.run_id == run_id, t.groups.c.purpose == Purpose.TRAIN, leased > 0, sealed > 0)
            .group_by(t.groups.c.step)
        )
        async with self._db.read() as connection:
            rows = await connection.execute(query)
            return {
                int(step): StepTimes(rollout_s=(last - first) / 1000, verify_s=float(verify))
                for step, first, last, verify in rows
            }

    async def totals(self, run_id: str, purpose: Purpose) -> WorkTotals:
        c = t.attempts.c
        query = (
            select(
                func.count(),
                func.sum(c.prompt_tokens),
                func.sum(c.completion_tokens),
                func.sum(c.agent_s),
                func.sum(c.verifier_s),
            )
            .join(t.groups, t.groups.c.group_id == c.group_id)
            .where(c.run_id == run_id, t.groups.c.purpose == purpose)
        )
        async with self._db.read() as connection:
            count, prompt, completion, agent_s, verifier_s = (await connection.execute(query)).one()
        return WorkTotals(count, int(prompt or 0), int(completion or 0), float(agent_s or 0), float(verifier_s or 0))


_SEALED_COLUMNS = ("sealed_at_ms", "turns", "prompt_tokens", "completion_tokens", "agent_s", "verifier_s")


def _attempt_rows(plan: GroupPlan) -> list[dict[str, Any]]:
    return [
        {
            "attempt_id": attempt_id,
            "run_id": plan.run_id,
            "group_id": plan.group_id,
            "position": index,
            "seed": seed,
            "state": LeaseState.QUEUED.value,
            "priority": _PRIORITY[plan.purpose],
        }
        for index, (attempt_id, seed) in enumerate(zip(plan.attempt_ids(), plan.seeds, strict=True))
    ]


async def _set_states(connection: AsyncConnection, states: dict[str, GroupState]) -> None:
    change = update(t.groups).where(t.groups.c.group_id == bindparam("id")).values(state=bindparam("new_state"))
    await connection.execute(change, [{"id": key, "new_state": state.value} for key, state in states.items()])
