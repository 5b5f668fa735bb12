from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from longshore_rollout_worker.domain.lease_table import LeaseTable
from longshore_rollout_worker.domain.ports import Lease, LeaseKey, Sampling
from longshore_rollout_worker.domain.vocabulary import AttemptEnd

KEYS = st.builds(LeaseKey, st.sampled_from(["a", "b", "c"]), st.integers(1, 3))
TTL_S = 10.0


def lease(key: LeaseKey) -> Lease:
    drawn = Sampling(1.0, 0.0, 0, 8, None)
    return Lease(key, "r", "t", "i", "shell", "{}", "p", None, drawn, 1, 1, 1.0, TTL_S, True, "v")


def test_an_unanswered_lease_expires_after_its_time_to_live() -> None:
    table, key = LeaseTable(), LeaseKey("a", 1)
    table.add(lease(key), 100.0)
    assert table.expired(109.9) == []
    table.confirm([key], 105.0)
    assert table.expired(114.9) == []
    assert table.expired(115.0) == [key]


class Leases(RuleBasedStateMachine):
    """A lease told to stop is named in no heartbeat, is stopped once, and never comes back to life."""

    @initialize()
    def start(self) -> None:
        self.table, self.now = LeaseTable(), 0.0
        self.stopped: set[LeaseKey] = set()

    @rule(key=KEYS)
    def add(self, key: LeaseKey) -> None:
        if key not in self.table:
            self.table.add(lease(key), self.now)

    @rule(key=KEYS)
    def remove(self, key: LeaseKey) -> None:
        self.table.remove(key)
        self.stopped.discard(key)

    @rule(key=KEYS)
    def stop(self, key: LeaseKey) -> None:
        fresh = self.table.stop([key], AttemptEnd.LOST)
        assert (fresh == [key]) == (key in self.table and key not in self.stopped)
        self.stopped.update(fresh)

    @rule(key=KEYS)
    def confirm(self, key: LeaseKey) -> None:
        self.table.confirm([key], self.now)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def stopped_leases_stay_stopped(self) -> None:
        assert not self.stopped & set(self.table.keys())
        assert not self.stopped & set(self.table.expired(self.now))
        assert all(self.table.stopped(key) is AttemptEnd.LOST for key in self.stopped)


TestLeases = Leases.TestCase
