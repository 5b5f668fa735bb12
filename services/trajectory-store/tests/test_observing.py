"""Gauges of what waits in the store, on SQLite and on Postgres."""

from __future__ import annotations

from prometheus_client import REGISTRY

from longshore_common.clock import SystemClock
from longshore_trajectory_store.bootstrap import open_database
from longshore_trajectory_store.domain.groups import GroupState
from longshore_trajectory_store.store.observing import Lag, StoreObserver, view
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

from .builders import a_group, a_turn
from .test_store import filled, take


async def test_lag_counts_what_waits_and_what_is_sampled(store: SqlTrajectoryStore, database_url: str) -> None:
    await filled(store, "done")
    batch = (await store.take_batch(take())).batch
    assert batch is not None
    await store.commit_batch("run", 1, 1, batch.batch_id)
    await filled(store, "old", version=0)
    await filled(store, "new", version=1)
    await store.create_group(a_group("flying"), [])
    await store.fence("flying-0", 1)
    await store.append_turn(a_turn("flying-0", version=0))
    database = open_database(database_url)
    run = (await view(database))["run"]
    assert (run.in_queue, run.in_flight) == (Lag(0.5, 1), Lag(1, 1))
    assert run.groups == {GroupState.CONSUMED: 1, GroupState.AVAILABLE: 2, GroupState.OPEN: 1}
    await database.close()


async def test_a_closed_run_leaves_the_page(store: SqlTrajectoryStore, database_url: str) -> None:
    await filled(store, "one")
    database = open_database(database_url)
    observer = StoreObserver(database, SystemClock())
    await observer.observe()
    labels = {"run": "run", "state": "available"}
    assert REGISTRY.get_sample_value("longshore_trajectory_groups", labels) == 1
    await store.close_run("run", True)
    await observer.observe()
    assert REGISTRY.get_sample_value("longshore_trajectory_groups", labels) is None
    await database.close()
