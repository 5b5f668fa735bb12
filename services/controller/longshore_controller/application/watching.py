"""Events of a run: those that were, then those that come."""

from __future__ import annotations

from collections.abc import AsyncIterator

from longshore_controller.domain.records import EventRecord
from longshore_controller.domain.run_state import FINISHED
from longshore_controller.domain.stores import RunStore
from longshore_controller.signals import Signal, wait_for

_PAGE = 500
_TICK_S = 2.0


class EventWatcher:
    """Catches up from the table, then follows it; the signal only saves polling."""

    def __init__(self, runs: RunStore, changed: Signal) -> None:
        self._runs = runs
        self._changed = changed

    async def watch(self, run: str, after: int, until_done: bool) -> AsyncIterator[EventRecord]:
        """Events with sequence > after, in order and without gaps. Raises NotFound."""
        run_id = (await self._runs.get(run)).run_id
        while True:
            ticket = self._changed.ticket()
            # Read before the events: an event that ends the run is then among them.
            finished = (await self._runs.get(run_id)).state in FINISHED
            while page := await self._runs.events(run_id, after, _PAGE):
                for event in page:
                    yield event
                after = page[-1].sequence
            if until_done and finished:
                return
            await wait_for(ticket, _TICK_S)
