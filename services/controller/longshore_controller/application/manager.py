"""Which runs are driven: starts what is pending, stops, resumes, and takes in what a restart interrupted."""

from __future__ import annotations

import asyncio

from longshore_controller.application.closing import RunCloser
from longshore_controller.application.driver import RunDriver
from longshore_controller.domain.records import RunRecord
from longshore_controller.domain.run_state import ACTIVE, STOPPABLE, check_move, check_resumable
from longshore_controller.domain.stores import RunStore
from longshore_controller.domain.vocabulary import RunState
from longshore_controller.signals import Signal, wait_for

_TICK_S = 5.0


class RunManager:
    """One driver task per active run, at most `max_active` at once; the others wait as PENDING."""

    def __init__(
        self,
        runs: RunStore,
        driver: RunDriver,
        closer: RunCloser,
        changed: Signal,
        *,
        max_active: int,
        auto_resume: bool,
    ) -> None:
        self._runs = runs
        self._driver = driver
        self._closer = closer
        self._changed = changed
        self._max_active = max_active
        self._auto_resume = auto_resume
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def recover(self) -> None:
        """At start: runs that were active under an earlier process become INTERRUPTED, or go on with auto_resume."""
        for run in await self._runs.in_states(sorted(ACTIVE)):
            await self._runs.move(run.run_id, RunState.INTERRUPTED, f"the controller ended while it was {run.state}")
        if self._auto_resume:
            for run in await self._runs.in_states([RunState.INTERRUPTED]):
                await self._runs.move(run.run_id, RunState.PENDING, "resumed after a restart")

    async def serve(self) -> None:
        """Starts pending runs, oldest first; runs until cancelled, then interrupts what it drives."""
        try:
            while True:
                ticket = self._changed.ticket()
                await self._start_pending()
                await wait_for(ticket, _TICK_S)
        finally:
            await self.interrupt()

    async def _start_pending(self) -> None:
        for run in await self._runs.in_states([RunState.PENDING]):
            self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
            if len(self._tasks) >= self._max_active:
                return
            if run.run_id not in self._tasks:
                self._tasks[run.run_id] = asyncio.create_task(self._drive(run.run_id))

    async def _drive(self, run_id: str) -> None:
        try:
            await self._driver.drive(run_id)
        finally:
            self._changed.notify()

    async def abandon(self) -> list[str]:
        """Ends all drivers and their jobs, as the end of the process would; gives the runs."""
        driven = list(self._tasks)
        for run_id in driven:
            await self._end(run_id)
        return driven

    async def interrupt(self) -> None:
        """Ends all drivers and their jobs; their runs become INTERRUPTED and can be resumed."""
        for run_id in await self.abandon():
            run = await self._runs.get(run_id)
            if run.state in ACTIVE:
                await self._runs.move(
                    run_id, RunState.INTERRUPTED, f"the controller was shut down while it was {run.state}"
                )

    async def _end(self, run_id: str) -> None:
        task = self._tasks.pop(run_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self, run: str, reason: str) -> RunRecord:
        """Stops a run; it can be resumed. Open attempts stay open for that; what is in flight is cancelled.

        Raises:
            Conflict: it has ended already.
        """
        record = await self._runs.get(run)
        if record.state not in STOPPABLE:
            check_move(record.run_id, record.state, RunState.STOPPED)
        await self._end(record.run_id)
        stopped = await self._runs.move(record.run_id, RunState.STOPPED, reason or "stopped by the user")
        await self._closer.close(record.run_id, record.alias)
        return stopped

    async def resume(self, run: str) -> RunRecord:
        """Lets an interrupted, stopped or failed run go on. Raises Conflict when it is none of these."""
        record = await self._runs.get(run)
        check_resumable(record.run_id, record.state)
        return await self._runs.move(record.run_id, RunState.PENDING, "resumed")
