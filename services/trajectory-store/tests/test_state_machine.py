"""Random histories of workers, a trainer that crashes, and zombies, against a model of what must hold.

Never lost, never trained on twice, counts always add up, older epochs and incarnations never get through.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from longshore_common.clock import FakeClock
from longshore_common.database import Database
from longshore_common.errors import Conflict, PermissionDenied
from longshore_trajectory_store.domain.attempts import AttemptState, Purpose
from longshore_trajectory_store.domain.batches import TakeRequest
from longshore_trajectory_store.domain.groups import GroupState
from longshore_trajectory_store.domain.outcomes import Discarded, DiscardReason
from longshore_trajectory_store.domain.ports import AttemptFilter, GroupFilter
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

from .builders import a_failed_seal, a_group, a_seal, a_turn
from .conftest import empty

pick = st.integers(0, 1000)


class History(RuleBasedStateMachine):
    """One run. version: newest published; manifest: (step, ledger) that is durable at the trainer."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = SqlTrajectoryStore(Database(self.url), FakeClock(1000))
        self.sizes: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.next_turn: dict[tuple[str, int], int] = {}
        self.closed: set[str] = set()
        self.incarnation = 1
        self.manifest: tuple[int, tuple[str, ...]] = (0, ())
        self.batch = None
        self.do(self.store.resume_run("run", 1, 0, ()))

    def do(self, work):
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.close()

    def an_attempt(self, number: int) -> str:
        names = sorted(self.epochs)
        return names[number % len(names)]

    @rule(size=st.integers(1, 3), refill=st.booleans(), eval_=st.integers(0, 4), play=st.booleans())
    def create(self, size: int, refill: bool, eval_: int, play: bool) -> None:
        name = f"g{len(self.sizes)}"
        purpose = Purpose.EVAL if eval_ == 0 else Purpose.TRAIN
        step = self.manifest[0] + 1
        self.do(
            self.store.create_group(
                a_group(name, size=size, refill=refill, purpose=purpose, min_scored=1, step=step), []
            )
        )
        self.sizes[name] = size
        self.epochs.update({f"{name}-{i}": 0 for i in range(size)})
        if play:
            self.play(name)

    @precondition(lambda self: self.epochs)
    @rule(number=pick, delta=st.integers(-1, 1))
    def fence(self, number: int, delta: int) -> None:
        name = self.an_attempt(number)
        epoch = max(1, self.epochs[name] + delta)
        if epoch < self.epochs[name]:
            with pytest.raises(PermissionDenied):
                self.do(self.store.fence(name, epoch))
        elif name in self.closed:
            with pytest.raises(Conflict):
                self.do(self.store.fence(name, epoch))
        else:
            self.do(self.store.fence(name, epoch))
            self.epochs[name] = epoch

    def write(self, name: str, epoch: int, work) -> bool:
        """Does the work, or checks that it is refused."""
        if epoch < self.epochs[name]:
            with pytest.raises(PermissionDenied):
                self.do(work)
            return False
        if name in self.closed:
            with pytest.raises(Conflict):
                self.do(work)
            return False
        self.do(work)
        self.epochs[name] = epoch
        return True

    @precondition(lambda self: self.epochs)
    @rule(number=pick, zombie=st.booleans())
    def append(self, number: int, zombie: bool) -> None:
        name = self.an_attempt(number)
        epoch = max(1, self.epochs[name] - zombie)
        turn = self.next_turn.get((name, epoch), 0)
        call = self.store.append_turn(a_turn(name, turn, lease_epoch=epoch, version=self.manifest[0]))
        if self.write(name, epoch, call):
            self.next_turn[name, epoch] = turn + 1

    @precondition(lambda self: self.epochs)
    @rule(number=pick, zombie=st.integers(0, 5), failed=st.integers(0, 4))
    def seal(self, number: int, zombie: int, failed: int) -> None:
        name = self.an_attempt(number)
        epoch = max(1, self.epochs[name] - (zombie == 0))
        if failed == 0:
            request = a_failed_seal(name, lease_epoch=epoch, identity=None)
        else:
            request = a_seal(name, lease_epoch=epoch, start_version=self.start_version(name, epoch))
        before = name in self.closed
        if before and epoch == self.epochs[name]:
            return
        if self.write(name, epoch, self.store.seal(request)):
            self.closed.add(name)
            self.do(self.store.seal(request))

    @precondition(lambda self: self.sizes)
    @rule(number=pick)
    def run_group(self, number: int) -> None:
        """All open attempts of a group play one turn and are scored, so that histories get to the trainer often."""
        self.play(sorted(self.sizes)[number % len(self.sizes)])

    def play(self, group_id: str) -> None:
        for name in [f"{group_id}-{i}" for i in range(self.sizes[group_id])]:
            if name in self.closed:
                continue
            self.epochs[name] = epoch = max(1, self.epochs[name])
            turn = self.next_turn.get((name, epoch), 0)
            self.do(self.store.append_turn(a_turn(name, turn, lease_epoch=epoch, version=self.manifest[0])))
            version = self.start_version(name, epoch)
            self.do(self.store.seal(a_seal(name, lease_epoch=epoch, start_version=version)))
            self.closed.add(name)

    def start_version(self, name: str, epoch: int) -> int:
        """The version of the epoch's first turn, as the session would say."""
        _, turns = self.do(self.store.get_attempt(name, with_turns=True))
        return turns[0].versions[0].version if turns and turns[0].lease_epoch == epoch else self.manifest[0]

    @precondition(lambda self: self.epochs)
    @rule(number=pick, reason=st.sampled_from(list(DiscardReason)))
    def discard(self, number: int, reason: DiscardReason) -> None:
        name = self.an_attempt(number)
        self.do(self.store.discard([name], reason))
        if name not in self.closed:
            self.closed.add(name)

    @precondition(lambda self: self.batch is None)
    @rule(groups=st.integers(1, 2), max_staleness=st.integers(0, 2))
    def take(self, groups: int, max_staleness: int) -> None:
        request = TakeRequest("run", self.incarnation, self.manifest[0] + 1, max_staleness, groups)
        result = self.do(self.store.take_batch(request))
        if result.batch is None:
            assert result.groups_available < groups
            return
        names = [group.group_id for group in result.batch.groups]
        assert len(set(names)) == groups
        assert not set(names) & set(self.manifest[1]), "trained on twice"
        for group in result.batch.groups:
            lags = [a.staleness for a in group.attempts if a.reward is not None]
            assert lags
            assert all(0 <= lag <= max_staleness for lag in lags)
        again = self.do(self.store.take_batch(request)).batch
        assert (again.batch_id, [g.group_id for g in again.groups]) == (result.batch.batch_id, names)
        self.batch = (result.batch.batch_id, names, False)
        event("took a batch")

    @precondition(lambda self: self.batch is not None and not self.batch[2])
    @rule()
    def write_manifest(self) -> None:
        batch_id, names, _ = self.batch
        self.manifest = (self.manifest[0] + 1, (*self.manifest[1], *names))
        self.batch = (batch_id, names, True)

    @precondition(lambda self: self.batch is not None and self.batch[2])
    @rule(twice=st.booleans())
    def commit(self, twice: bool) -> None:
        for _ in range(1 + twice):
            self.do(self.store.commit_batch("run", self.incarnation, self.manifest[0], self.batch[0]))
        self.batch = None
        event(f"committed step {self.manifest[0]}")

    @precondition(lambda self: self.batch is None)
    @rule(max_staleness=st.integers(0, 1))
    def train_step(self, max_staleness: int) -> None:
        """A whole step, so that versions move on while groups wait."""
        self.take(1, max_staleness)
        if self.batch is not None:
            self.write_manifest()
            self.commit(False)

    @rule()
    def crash_and_resume(self) -> None:
        self.incarnation += 1
        event(f"crashed, batch {self.batch and ('in the manifest' if self.batch[2] else 'not in the manifest')}")
        self.do(self.store.resume_run("run", self.incarnation, *self.manifest))
        self.batch = None
        states = {g.group_id: g.state for g in self.groups()}
        assert GroupState.TAKEN not in states.values()
        assert all(states[name] is GroupState.CONSUMED for name in self.manifest[1])

    @precondition(lambda self: self.incarnation > 1)
    @rule()
    def zombie_trainer(self) -> None:
        old = self.incarnation - 1
        with pytest.raises(Conflict):
            self.do(self.store.take_batch(TakeRequest("run", old, self.manifest[0] + 1, 8, 1)))
        with pytest.raises(Conflict):
            self.do(self.store.resume_run("run", old, 0, ()))

    def groups(self):
        return self.do(self.store.list_groups(GroupFilter(run_id="run"), None, 0)).items

    @invariant()
    def counts_add_up(self) -> None:
        for purpose in Purpose:
            counts = self.do(self.store.counts("run", purpose, ""))
            assert counts.planned + counts.refilled == counts.scored + counts.failed + counts.discarded + counts.open
        both = self.do(self.store.counts("run", None, ""))
        assert both.planned + both.refilled == sum(self.sizes.values())
        assert both.open == len(self.epochs) - len(self.closed)
        assert both.retried == sum(max(epoch - 1, 0) for epoch in self.epochs.values())

    @invariant()
    def no_group_is_lost_or_consumed_without_a_manifest(self) -> None:
        in_flight = set(self.batch[1]) if self.batch else set()
        attempts = self.do(self.store.list_attempts(AttemptFilter(run_id="run"), 1000, 0)).items
        for group in self.groups():
            members = [a for a in attempts if a.group_id == group.group_id]
            assert (group.state is GroupState.TAKEN) == (group.group_id in in_flight)
            if group.state is GroupState.CONSUMED:
                assert group.group_id in self.manifest[1]
            if group.group_id in set(self.manifest[1]) - in_flight:
                assert group.state is GroupState.CONSUMED
            is_open = any(a.state is AttemptState.OPEN for a in members)
            assert (group.state is GroupState.OPEN) == is_open
            if group.state is GroupState.DISCARDED:
                assert any(isinstance(a.outcome, Discarded) for a in members)
            if group.state is GroupState.AVAILABLE:
                assert sum(a.trainable for a in members) >= group.min_scored
        sequences = [a.sequence for a in attempts if a.state is AttemptState.SEALED]
        assert len(set(sequences)) == len(sequences)
        assert all(sequences)


def run(url: str, examples: int, prepare) -> None:
    class Fresh(History):
        def __init__(self) -> None:
            prepare()
            super().__init__()

    Fresh.url = url
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    bounded = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=quiet,
        database=None,
    )
    run_state_machine_as_test(Fresh, settings=bounded)


def test_histories_on_sqlite(sqlite_template: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"

        def prepare() -> None:
            for name in ("store.sqlite-wal", "store.sqlite-shm"):
                (Path(folder) / name).unlink(missing_ok=True)
            shutil.copy(sqlite_template, path)

        run(f"sqlite+aiosqlite:///{path}", 12, prepare)


def test_histories_on_postgres(postgres_url: str) -> None:
    run(postgres_url, 4, lambda: asyncio.run(empty(postgres_url)))
