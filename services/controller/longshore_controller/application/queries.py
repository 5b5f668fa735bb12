"""Reading runs."""

from __future__ import annotations

from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_controller.domain.ports import Trajectory
from longshore_controller.domain.records import AttemptCounts, EventRecord, RunRecord
from longshore_controller.domain.stores import RunStore
from longshore_controller.domain.vocabulary import Purpose

log = get_logger(__name__)

DEFAULT_PAGE = 50
MAX_PAGE = 500


class RunQueries:
    """Runs and their events, as they are now."""

    def __init__(self, runs: RunStore, trajectory: Trajectory) -> None:
        self._runs = runs
        self._trajectory = trajectory

    async def get(self, run: str) -> tuple[RunRecord, AttemptCounts | None]:
        """A run and its training attempts; without them while the trajectory store does not answer."""
        record = await self._runs.get(run)
        try:
            return record, await self._trajectory.counts(record.run_id, Purpose.TRAIN)
        except LongshoreError as error:
            log.warning("counts are missing", run=record.run_id, error=error.message)
            return record, None

    async def page(self, size: int, token: str) -> tuple[list[RunRecord], str]:
        """Newest first, and the token of the next page (empty: none)."""
        limit = min(size or DEFAULT_PAGE, MAX_PAGE)
        runs = await self._runs.page(limit + 1, token)
        more = len(runs) > limit
        return runs[:limit], runs[limit - 1].run_id if more else ""

    async def events(self, run: str, after: int, limit: int) -> list[EventRecord]:
        """Events with sequence > after."""
        record = await self._runs.get(run)
        return await self._runs.events(record.run_id, after, min(limit or MAX_PAGE, MAX_PAGE))
