"""Transactions on the ledger: take, commit, resume, close."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.digests import digest
from longshore_common.errors import Conflict, InvalidSpec, NotFound
from longshore_common.log import get_logger
from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose
from longshore_trajectory_store.domain.batches import (
    BatchState,
    ResumePlan,
    Run,
    TakeRequest,
    check_incarnation,
    check_step,
    check_take,
    plan_resume,
    stale_attempts,
)
from longshore_trajectory_store.domain.groups import FROZEN, Group, GroupState
from longshore_trajectory_store.domain.outcomes import DiscardReason
from longshore_trajectory_store.store import statements as sql
from longshore_trajectory_store.store.lifecycle import Change
from longshore_trajectory_store.store.schema import attempts, batches, groups, turns

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """batch_id empty: pending or closed. swept: attempts discarded as stale on the way."""

    batch_id: str
    group_ids: tuple[str, ...]
    available: int
    closed: bool
    swept: int
    fresh: bool


async def take(connection: AsyncConnection, request: TakeRequest, batch_id: str, now: int) -> Taken:
    """See TrajectoryStore.take_batch; the batch's content is read afterwards."""
    check_take(request)
    run = await sql.lock_run(connection, request.run_id)
    check_incarnation(run, request.incarnation, "TakeBatch")
    if run.closed:
        return Taken("", (), 0, True, 0, False)
    check_step(run, request.step)
    if not run.incarnation:
        await sql.update_run(connection, request.run_id, incarnation=request.incarnation)
    before = await _find_batch(connection, request.run_id, request.step, request.incarnation)
    if before is not None and before.state == BatchState.TAKEN:
        return Taken(before.batch_id, tuple(json.loads(before.group_ids)), 0, False, 0, False)
    if before is not None:
        # Released by a resume of this same incarnation: the step is taken anew.
        await connection.execute(sa.delete(batches).where(batches.c.batch_id == before.batch_id))
    ready, swept = await _sweep(connection, request, now)
    if len(ready) < request.groups:
        return Taken("", (), len(ready), False, swept, False)
    chosen = tuple(group.group_id for group in ready[: request.groups])
    for part in sql.chunks(chosen):
        update = sa.update(groups).where(groups.c.group_id.in_(part))
        await connection.execute(update.values(state=GroupState.TAKEN))
    row = {"batch_id": batch_id, "run_id": request.run_id, "step": request.step, "incarnation": request.incarnation}
    content = {"state": BatchState.TAKEN, "group_ids": json.dumps(chosen), "taken_at_ms": now}
    await connection.execute(sa.insert(batches).values(**row, **content))
    return Taken(batch_id, chosen, len(ready) - len(chosen), False, swept, True)


async def _sweep(connection: AsyncConnection, request: TakeRequest, now: int) -> tuple[list[Group], int]:
    """Available groups, oldest step first, after what is stale for this step was discarded."""
    where = sa.and_(groups.c.run_id == request.run_id, groups.c.state == GroupState.AVAILABLE)
    found = sorted(await sql.lock_groups(connection, where), key=lambda group: (group.step, group.number))
    in_group = await sql.members(connection, [group.group_id for group in found])
    ready: list[Group] = []
    swept = 0
    for group in found:
        ids = set(stale_attempts(request, in_group[group.group_id]))
        if ids:
            all_attempts = in_group[group.group_id]
            group, count = await sql.discard_in_group(
                connection, group, all_attempts, ids, DiscardReason.STALE, now
            )  # fmt: skip
            swept += count
        if group.state is GroupState.AVAILABLE:
            ready.append(group)
    return ready, swept


async def _find_batch(
    connection: AsyncConnection, run_id: str, step: int, incarnation: int
) -> sa.Row[tuple[object, ...]] | None:
    key = (batches.c.run_id == run_id, batches.c.step == step, batches.c.incarnation == incarnation)
    return (await connection.execute(sa.select(batches).where(*key))).one_or_none()


async def commit(connection: AsyncConnection, run_id: str, incarnation: int, step: int, batch_id: str) -> None:
    """See TrajectoryStore.commit_batch."""
    run = await sql.lock_run(connection, run_id)
    check_incarnation(run, incarnation, "CommitBatch")
    found = await connection.execute(sa.select(batches).where(batches.c.batch_id == batch_id))
    batch = found.one_or_none()
    if batch is None or batch.run_id != run_id:
        raise NotFound(f"no batch {batch_id} of run {run_id}: commit what TakeBatch gave")
    if batch.step != step:
        raise Conflict(f"batch {batch_id} of run {run_id} is of step {batch.step}, not {step}")
    if batch.state == BatchState.COMMITTED:
        return
    if batch.state == BatchState.RELEASED:
        raise Conflict(f"batch {batch_id} of run {run_id} was released by a resume: its groups may be in another batch")
    await _consume(connection, json.loads(batch.group_ids), step)
    await connection.execute(
        sa.update(batches).where(batches.c.batch_id == batch_id).values(state=BatchState.COMMITTED)
    )
    await sql.update_run(connection, run_id, committed_step=max(run.committed_step, step))


async def _consume(connection: AsyncConnection, group_ids: Sequence[str], step: int) -> None:
    for part in sql.chunks(group_ids):
        update = sa.update(groups).where(groups.c.group_id.in_(part))
        await connection.execute(update.values(state=GroupState.CONSUMED, consumed_step=step))


async def resume(
    connection: AsyncConnection, run_id: str, incarnation: int, step: int, ledger: Sequence[str], now: int
) -> tuple[int, int]:
    """See TrajectoryStore.resume_run."""
    if incarnation < 1 or step < 0:
        raise InvalidSpec(
            f"ResumeRun of run {run_id}: incarnation {incarnation}, step {step}; at least 1 and 0", field="incarnation"
        )
    run = await sql.lock_run(connection, run_id)
    content = digest([step, sorted(set(ledger))])
    if _is_repeat(run, incarnation, step, content):
        return run.groups_released, run.attempts_stale
    where = sa.and_(groups.c.run_id == run_id, groups.c.purpose == Purpose.TRAIN)
    found = await sql.lock_groups(connection, where)
    plan = await _plan(connection, found, step, set(ledger))
    unknown = sorted(set(ledger) - {group.group_id for group in found})
    if unknown:
        # It can never be taken, so the resume is safe; but somebody lost a database.
        log.warning("manifest names groups that the store does not have", run=run_id, groups=unknown[:5])
    await _apply(connection, run_id, step, set(ledger), plan)
    stale = await _discard_stale(connection, plan, now)
    await sql.update_run(
        connection,
        run_id,
        incarnation=incarnation,
        closed=run.closed and incarnation == run.incarnation,
        committed_step=step,
        resume_digest=content,
        resume_step=step,
        groups_released=len(plan.release),
        attempts_stale=stale,
    )
    return len(plan.release), stale


def _is_repeat(run: Run, incarnation: int, step: int, content: str) -> bool:
    """A newer incarnation takes over; the same one may repeat itself, or resume from a later manifest of its own."""
    if incarnation > run.incarnation:
        return False
    if incarnation < run.incarnation:
        check_incarnation(run, incarnation, "ResumeRun")
    if run.resume_digest == content:
        return True
    if run.resume_digest and step <= run.resume_step:
        raise Conflict(
            f"ResumeRun of run {run.run_id} refused: incarnation {incarnation} resumed from step {run.resume_step} "
            f"already, with another ledger or a later manifest than step {step}; use a new incarnation"
        )
    return False


async def _plan(connection: AsyncConnection, found: list[Group], step: int, ledger: set[str]) -> ResumePlan:
    loose = [g.group_id for g in found if g.state is not GroupState.CONSUMED and g.group_id not in ledger]
    in_group = await sql.members(connection, loose)
    candidates = [attempt for list_ in in_group.values() for attempt in list_]
    versions = await _open_versions(connection, candidates)
    return plan_resume(step, ledger, found, candidates, versions)


async def _open_versions(connection: AsyncConnection, candidates: Sequence[Attempt]) -> dict[str, int]:
    ids = [a.attempt_id for a in candidates if a.state is AttemptState.OPEN]
    found: dict[str, int] = {}
    for part in sql.chunks(ids):
        query = sa.select(turns.c.attempt_id, sa.func.max(turns.c.max_version)).where(turns.c.attempt_id.in_(part))
        for attempt_id, version in await connection.execute(query.group_by(turns.c.attempt_id)):
            found[attempt_id] = version or 0
    return found


async def _apply(connection: AsyncConnection, run_id: str, step: int, ledger: set[str], plan: ResumePlan) -> None:
    rows = await connection.execute(
        sa.select(batches).where(batches.c.run_id == run_id, batches.c.state == BatchState.TAKEN)
    )
    step_of: dict[str, int] = {}
    for batch in rows.all():
        in_batch = json.loads(batch.group_ids)
        kept = all(group_id in ledger for group_id in in_batch)
        step_of.update(dict.fromkeys(in_batch, batch.step))
        state = BatchState.COMMITTED if kept else BatchState.RELEASED
        await connection.execute(sa.update(batches).where(batches.c.batch_id == batch.batch_id).values(state=state))
    for group_id in plan.consume:
        await _consume(connection, [group_id], step_of.get(group_id, step))
    for part in sql.chunks(plan.release):
        update = sa.update(groups).where(groups.c.group_id.in_(part))
        await connection.execute(update.values(state=GroupState.AVAILABLE))


async def _discard_stale(connection: AsyncConnection, plan: ResumePlan, now: int) -> int:
    if not plan.stale:
        return 0
    stale = set(plan.stale)
    group_ids: set[str] = set()
    for part in sql.chunks(sorted(stale)):
        query = sa.select(attempts.c.group_id).where(attempts.c.attempt_id.in_(part)).distinct()
        group_ids.update((await connection.execute(query)).scalars())
    total = 0
    in_group = await sql.members(connection, sorted(group_ids))
    for group_id in sorted(group_ids):
        group = await sql.load_group(connection, group_id)
        if group.state not in FROZEN:
            total += (
                await sql.discard_in_group(connection, group, in_group[group_id], stale, DiscardReason.STALE, now)
            )[1]
    return total


async def close(connection: AsyncConnection, run_id: str, discard_open: bool, now: int) -> Change:
    """See TrajectoryStore.close_run."""
    await sql.lock_run(connection, run_id)
    await sql.update_run(connection, run_id, closed=True)
    if not discard_open:
        return Change(run_id, 0, True)
    where = sa.and_(groups.c.run_id == run_id, groups.c.state == GroupState.OPEN)
    found = await sql.lock_groups(connection, where)
    in_group = await sql.members(connection, [group.group_id for group in found], lock=True)
    total = 0
    for group in found:
        all_attempts = in_group[group.group_id]
        ids = {a.attempt_id for a in all_attempts if a.state is AttemptState.OPEN}
        reason = DiscardReason.CANCELLED
        total += (await sql.discard_in_group(connection, group, all_attempts, ids, reason, now))[1]
    return Change(run_id, total, True)
