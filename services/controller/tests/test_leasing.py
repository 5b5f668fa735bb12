"""Leases: never two live ones of an attempt, zombies refused, whatever the order of events."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longshore_common.clock import FakeClock
from longshore_common.database import Database, migrate
from longshore_common.errors import Conflict, Unavailable
from longshore_controller.application.context import RunContexts
from longshore_controller.application.leasing import Failure, LeaseService
from longshore_controller.domain.leases import LeaseRef
from longshore_controller.domain.planner import panel_groups
from longshore_controller.domain.vocabulary import EventKind, LeaseState, Purpose, RunState
from longshore_controller.signals import Signal
from longshore_controller.store.leases import SqlLeaseStore
from longshore_controller.store.runs import SqlRunStore
from longshore_controller.store.work import SqlWorkStore

from .builders import SPEC, a_shape
from .fakes import FakeArtifacts, FakeCatalog

T = TypeVar("T")
TTL_S = 10.0
RETRIES = 1


class FakeStore:
    """Only what leasing asks of the trajectory store, with its rules: epochs grow, sealed is final."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.sealed: dict[str, str] = {}
        self.down = False

    async def fence(self, attempt_id: str, epoch: int) -> None:
        if self.down:
            raise Unavailable("the store is away")
        if attempt_id in self.sealed:
            raise Conflict("sealed")
        assert epoch > self.epochs.get(attempt_id, 0), "an epoch was granted twice"
        self.epochs[attempt_id] = epoch

    async def seal_failed(self, attempt_id: str, epoch: int, failure: str, evidence: str) -> None:
        assert epoch == self.epochs[attempt_id]
        self.sealed[attempt_id] = failure

    def seal(self, ref: LeaseRef) -> bool:
        if self.epochs[ref.attempt_id] != ref.epoch or ref.attempt_id in self.sealed:
            return False
        self.sealed[ref.attempt_id] = "scored"
        return True


class Desk:
    """A lease service on SQLite with one run of 3 groups x 2 attempts."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite+aiosqlite:///{folder}/c.sqlite"
        migrate(url, "longshore_controller.store")
        self.clock = FakeClock(1_000_000)
        self.database = Database(url)
        self.added = Signal()
        self.runs = SqlRunStore(self.database, self.clock, Signal())
        self.work = SqlWorkStore(self.database, self.clock, self.added)
        self.store = SqlLeaseStore(self.database)
        self.trajectory = FakeStore()
        self.run_id = ""
        self.service = LeaseService(
            self.runs,
            self.work,
            self.store,
            RunContexts(self.runs),
            self.trajectory,  # type: ignore[arg-type]
            self.clock,
            self.added,
            ttl_s=TTL_S,
            batch=256,
        )

    async def open(self, groups: int = 3, size: int = 2) -> None:
        from longshore_controller.application.submission import SubmissionService
        from longshore_controller.domain.planner import next_training_groups

        artifacts = FakeArtifacts(Path("."))
        submission = SubmissionService(self.runs, FakeCatalog(), artifacts, self.clock)
        run, _ = await submission.submit(SPEC, False, "")
        self.run_id = run.run_id
        for state in (RunState.WARMING, RunState.SERVING, RunState.TRAINING):
            await self.runs.move(run.run_id, state)
        tasks = tuple(sorted(t.digest for t in await self.runs.tasks(run.run_id) if t.split == "train"))
        shape = a_shape(run_id=run.run_id, tasks=tasks, steps=1, groups_per_step=groups, group_size=size)
        await self.work.add_groups(next_training_groups(shape, 0, 0, []))


@pytest.fixture
async def desk(tmp_path: Path) -> Any:
    found = await asyncio.to_thread(Desk, tmp_path)
    await found.open()
    yield found
    await found.database.close()


async def test_every_attempt_is_granted_once_in_order(desk: Desk) -> None:
    first = await desk.service.lease("a", 4, 0)
    second = await desk.service.lease("b", 4, 0)
    assert len(first) == 4
    assert len(second) == 2
    refs = [lease.ref.attempt_id for lease in (*first, *second)]
    assert refs == sorted(refs)
    assert len(set(refs)) == 6
    assert await desk.service.lease("c", 4, 0) == []


async def test_concurrent_workers_never_share_an_attempt(desk: Desk) -> None:
    batches = await asyncio.gather(*(desk.service.lease(f"w{i}", 2, 0) for i in range(6)))
    ids = [lease.ref.attempt_id for batch in batches for lease in batch]
    assert len(ids) == len(set(ids)) == 6


async def test_a_waiting_worker_wakes_when_work_comes(desk: Desk) -> None:
    await desk.service.lease("a", 100, 0)
    waiting = asyncio.create_task(desk.service.lease("b", 1, 30))
    await asyncio.sleep(0.05)
    assert await desk.service.lease("x", 1, 0) == []
    await desk.work.requeue([f"{desk.run_id}-t000000-0"])
    (lease,) = await asyncio.wait_for(waiting, 5)
    assert lease.ref.epoch == 2


async def test_silent_worker_is_replaced_and_its_late_calls_refused(desk: Desk) -> None:
    (lease,) = await desk.service.lease("dead", 1, 0)
    await desk.service.lease("other", 100, 0)
    desk.clock.advance(TTL_S / 2)
    assert not (await desk.service.heartbeat("dead", [lease.ref])).lost
    desk.clock.advance(TTL_S + 1)
    again = await desk.service.lease("alive", 1, 0)
    assert again[0].ref.epoch == 2
    assert lease.ref in (await desk.service.heartbeat("dead", [lease.ref])).lost or again[0].ref.attempt_id != (
        lease.ref.attempt_id
    )
    events = await desk.runs.events(desk.run_id, 0, 100)
    assert any(event.kind is EventKind.LEASE_EXPIRED for event in events)


async def test_zombie_completion_is_a_conflict(desk: Desk) -> None:
    leases = await desk.service.lease("dead", 100, 0)
    desk.clock.advance(TTL_S + 1)
    await desk.service.lease("alive", 100, 0)
    with pytest.raises(Conflict, match="no longer leased to worker 'dead'"):
        await desk.service.complete("dead", leases[0].ref, None)
    with pytest.raises(Conflict):
        await desk.service.complete("dead", leases[0].ref, Failure("gateway", "late"))


async def test_another_worker_with_the_right_epoch_is_refused(desk: Desk) -> None:
    (lease,) = await desk.service.lease("a", 1, 0)
    assert (await desk.service.heartbeat("b", [lease.ref])).lost == (lease.ref,)
    with pytest.raises(Conflict):
        await desk.service.complete("b", lease.ref, None)


async def test_retries_then_sealed_as_failed_here(desk: Desk) -> None:
    (lease,) = await desk.service.lease("a", 1, 0)
    assert await desk.service.complete("a", lease.ref, Failure("engine", "gone")) is True
    leases = await desk.service.lease("a", 100, 0)
    again = next(item for item in leases if item.ref.attempt_id == lease.ref.attempt_id)
    assert again.ref.epoch == 2
    assert await desk.service.complete("a", again.ref, Failure("engine", "gone")) is False
    assert desk.trajectory.sealed == {lease.ref.attempt_id: "engine"}
    desk.clock.advance(TTL_S + 1)
    assert lease.ref.attempt_id not in {item.ref.attempt_id for item in await desk.service.lease("b", 100, 0)}


async def test_complete_twice_is_a_no_op(desk: Desk) -> None:
    (lease,) = await desk.service.lease("a", 1, 0)
    assert await desk.service.complete("a", lease.ref, None) is False
    assert await desk.service.complete("a", lease.ref, None) is False


async def test_stopped_run_cancels_and_its_work_waits(desk: Desk) -> None:
    leases = await desk.service.lease("a", 100, 0)
    await desk.runs.move(desk.run_id, RunState.STOPPED)
    refs = [lease.ref for lease in leases]
    assert set((await desk.service.heartbeat("a", refs)).cancelled) == set(refs)
    assert await desk.service.complete("a", refs[0], Failure("gateway", "closed")) is True
    assert await desk.service.lease("b", 1, 0) == []


async def test_store_away_gives_the_attempt_back(desk: Desk) -> None:
    desk.trajectory.down = True
    assert await desk.service.lease("a", 2, 0) == []
    assert "leased" not in (await desk.store.queue_depth()).get(desk.run_id, {})
    desk.trajectory.down = False
    assert [lease.ref.epoch for lease in await desk.service.lease("a", 1, 0)] == [2]


async def test_evaluation_goes_before_training(desk: Desk) -> None:
    task = next(t.digest for t in await desk.runs.tasks(desk.run_id) if t.split == "dev")
    await desk.work.add_groups(panel_groups(desk.run_id, 1, "dev@0", "dev", [task], 1, 0))
    (lease,) = await desk.service.lease("a", 1, 0)
    assert lease.purpose is Purpose.EVAL
    assert lease.pinned_version == 0
    assert lease.temperature == 1.0
    assert lease.agent_timeout_s == 5


async def test_96_attempts_are_granted_quickly(tmp_path: Path) -> None:
    import time

    desk = await asyncio.to_thread(Desk, tmp_path)
    await desk.open(groups=12, size=8)
    started = time.perf_counter()
    leases = await desk.service.lease("a", 96, 0)
    granted_s = time.perf_counter() - started
    started = time.perf_counter()
    await desk.service.heartbeat("a", [lease.ref for lease in leases])
    heartbeat_s = time.perf_counter() - started
    await desk.database.close()
    assert len(leases) == 96
    # Generous: this machine is shared; alone it takes a few hundredths of a second.
    assert granted_s < 2.0
    assert heartbeat_s < 1.0


class LeaseMachine(RuleBasedStateMachine):
    """Workers lease, beat, finish, fail and fall silent in any order, on a clock that the test moves."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.desk = Desk(Path(self.folder.name))
        self.run_now(self.desk.open())
        self.held: dict[LeaseRef, tuple[str, int]] = {}
        """Lease to (worker, expiry as the controller promised it)."""
        self.retries: dict[str, int] = {}

    def run_now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.run_now(self.desk.database.close())
            self.loop.close()
            self.folder.cleanup()

    def newest(self, ref: LeaseRef) -> bool:
        return self.desk.trajectory.epochs[ref.attempt_id] == ref.epoch

    @rule(worker=st.sampled_from("abc"), limit=st.integers(1, 4))
    def lease(self, worker: str, limit: int) -> None:
        now = self.desk.clock.now_ms()
        for lease in self.run_now(self.desk.service.lease(worker, limit, 0)):
            for ref, (_, expires) in self.held.items():
                if ref.attempt_id == lease.ref.attempt_id:
                    assert expires <= now, "two live leases of one attempt"
                    assert ref.epoch < lease.ref.epoch
            assert lease.ref.attempt_id not in self.desk.trajectory.sealed
            self.held = {r: v for r, v in self.held.items() if r.attempt_id != lease.ref.attempt_id}
            self.held[lease.ref] = (worker, now + int(1000 * TTL_S))

    @rule(seconds=st.sampled_from([1.0, 4.0, 9.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.held, key=str)))
        worker, _ = self.held[ref]
        verdict = self.run_now(self.desk.service.heartbeat(worker, [ref]))
        if ref in verdict.extended:
            assert self.newest(ref)
            self.held[ref] = (worker, self.desk.clock.now_ms() + int(1000 * TTL_S))
        else:
            assert ref in verdict.lost
            self.held.pop(ref)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.held, key=str)))
        worker, _ = self.held.pop(ref)
        if self.desk.trajectory.seal(ref):
            assert self.run_now(self.desk.service.complete(worker, ref, None)) is False
        else:
            with pytest.raises(Conflict):
                self.run_now(self.desk.service.complete(worker, ref, None))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.held, key=str)))
        worker, _ = self.held.pop(ref)
        used = self.retries.get(ref.attempt_id, 0)
        again = self.run_now(self.desk.service.complete(worker, ref, Failure("engine", "gone")))
        assert again is (used < RETRIES)
        assert (ref.attempt_id in self.desk.trajectory.sealed) is not again
        self.retries[ref.attempt_id] = used + 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), worker=st.sampled_from("xyz"))
    def zombie(self, data: st.DataObject, worker: str) -> None:
        """A worker that never held it, or holds an older epoch."""
        ref = data.draw(st.sampled_from(sorted(self.held, key=str)))
        with pytest.raises(Conflict):
            self.run_now(self.desk.service.complete(worker, ref, None))
        older = LeaseRef(ref.attempt_id, ref.epoch - 1)
        with pytest.raises(Conflict):
            self.run_now(self.desk.service.complete(self.held[ref][0], older, None))

    @invariant()
    def sealed_attempts_are_not_leased(self) -> None:
        if hasattr(self, "desk"):
            rows = self.run_now(self._rows())
            for attempt in self.desk.trajectory.sealed:
                assert rows[attempt] is LeaseState.DONE

    async def _rows(self) -> dict[str, LeaseState]:
        from sqlalchemy import select

        from longshore_controller.store.tables import attempts

        async with self.desk.database.read() as connection:
            found = await connection.execute(select(attempts.c.attempt_id, attempts.c.state))
            return {row[0]: LeaseState(row[1]) for row in found}


LeaseMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestLeases = LeaseMachine.TestCase
