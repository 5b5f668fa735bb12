"""What waits in the store and how old it gets, by run; for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.clock import Clock
from longshore_common.database import Database
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_trajectory_store.domain.attempts import AttemptState, Purpose
from longshore_trajectory_store.domain.groups import GroupState
from longshore_trajectory_store.store import metrics
from longshore_trajectory_store.store.schema import attempts, groups, runs, turns

log = get_logger(__name__)

_EVERY_S = 5.0


@dataclass(frozen=True)
class Lag:
    """Of attempts behind the trainer, in policy versions."""

    mean: float = 0.0
    max: float = 0.0


@dataclass
class RunView:
    """One run that is not closed."""

    groups: dict[GroupState, int] = field(default_factory=dict)
    in_queue: Lag = Lag()
    """Of attempts in groups that could be taken now."""
    in_flight: Lag = Lag()
    """Of attempts that have turns and no outcome."""


async def view(database: Database) -> dict[str, RunView]:
    """Every run that is not closed."""
    async with database.read() as connection:
        open_runs = (await connection.execute(sa.select(runs.c.run_id).where(runs.c.closed.is_(False)))).scalars()
        found = {run_id: RunView() for run_id in open_runs}
        count = (
            sa.select(groups.c.run_id, groups.c.state, sa.func.count())
            .where(groups.c.run_id.in_(found), groups.c.purpose == Purpose.TRAIN)
            .group_by(groups.c.run_id, groups.c.state)
        )
        for run_id, state, number in await connection.execute(count):
            found[run_id].groups[GroupState(state)] = int(number)
        for run_id, lag in (await _lags(connection, _queued())).items():
            if run_id in found:
                found[run_id].in_queue = lag
        for run_id, lag in (await _lags(connection, _flying())).items():
            if run_id in found:
                found[run_id].in_flight = lag
    return found


def _queued() -> sa.Subquery:
    """(run_id, version) of what waits for the trainer."""
    return (
        sa.select(attempts.c.run_id, attempts.c.start_version.label("version"))
        .join(groups, groups.c.group_id == attempts.c.group_id)
        .where(groups.c.state == GroupState.AVAILABLE, attempts.c.trainable.is_(True))
        .subquery()
    )


def _flying() -> sa.Subquery:
    """(run_id, version) of what is being sampled: the oldest version among its turns."""
    return (
        sa.select(attempts.c.run_id, sa.func.min(turns.c.min_version).label("version"))
        .join(turns, sa.and_(turns.c.attempt_id == attempts.c.attempt_id, turns.c.epoch == attempts.c.epoch))
        .where(attempts.c.state == AttemptState.OPEN, attempts.c.purpose == Purpose.TRAIN, turns.c.min_version >= 0)
        .group_by(attempts.c.run_id, attempts.c.attempt_id)
        .subquery()
    )


async def _lags(connection: AsyncConnection, found: sa.Subquery) -> dict[str, Lag]:
    # domain.staleness of the step that is trained next: (committed + 1 - 1) - version.
    lag = runs.c.committed_step - found.c.version
    query = (
        sa.select(found.c.run_id, sa.func.avg(lag), sa.func.max(lag))
        .join(runs, runs.c.run_id == found.c.run_id)
        .group_by(found.c.run_id)
    )
    return {run_id: Lag(float(mean), float(most)) for run_id, mean, most in await connection.execute(query)}


class StoreObserver:
    """Sets the gauges every few seconds."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._shown: set[str] = set()

    async def serve(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self.observe()
            except LongshoreError as error:
                log.warning("metrics are old", error=error.message)
            await self._clock.sleep(_EVERY_S)

    async def observe(self) -> None:
        """Sets the gauges once; a closed run's are taken off the page."""
        found = await view(self._database)
        for run_id in self._shown - set(found):
            metrics.forget(run_id)
        self._shown = set(found)
        for run_id, run in found.items():
            for state in GroupState:
                metrics.GROUPS.labels(run_id, state.value).set(run.groups.get(state, 0))
            for where, lag in (("in_queue", run.in_queue), ("in_flight", run.in_flight)):
                metrics.LAG.labels(run_id, where, "mean").set(lag.mean)
                metrics.LAG.labels(run_id, where, "max").set(lag.max)
