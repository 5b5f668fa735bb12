"""Runs trainer jobs to their end, again with a new incarnation when one dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from longshore_common.errors import Internal
from longshore_common.log import get_logger
from longshore_controller import metrics
from longshore_controller.domain.jobs import JobFile, JobKind
from longshore_controller.domain.ports import Job, JobLauncher
from longshore_controller.domain.stores import NewEvent, RunStore
from longshore_controller.domain.vocabulary import EventKind

log = get_logger(__name__)

_SHOWN_CHARACTERS = 2000


class TrainerJobs:
    """Restarts a job until its work is done, at most `restarts` times in a row without a step in between."""

    def __init__(self, runs: RunStore, launcher: JobLauncher, restarts: int) -> None:
        self._runs = runs
        self._launcher = launcher
        self._restarts = restarts

    async def run(
        self,
        run_id: str,
        kind: JobKind,
        make: Callable[[int], JobFile],
        attend: Callable[[Job], Awaitable[int]],
        progress: Callable[[], Awaitable[tuple[bool, int]]],
    ) -> None:
        """Launches make(incarnation) and attends it until progress() says done.

        Args:
            make: the job file for an incarnation.
            attend: waits for the job's end and gives its exit status, working beside it.
            progress: (done, how far).

        Raises:
            Internal: it died too often; the message ends with the last lines of its log.
        """
        failures = 0
        done, before = await progress()
        while not done:
            incarnation = await self._runs.new_incarnation(run_id)
            job = await self._launcher.launch(make(incarnation))
            started = NewEvent(
                EventKind.TRAINER_STARTED, f"{kind} trainer, incarnation {incarnation}", {"incarnation": incarnation}
            )
            await self._runs.append(run_id, started)
            try:
                code = await attend(job)
            finally:
                await job.stop()
            done, now = await progress()
            if done:
                return
            failures = 1 if now > before else failures + 1
            before = now
            await self._failed(run_id, kind, code, job.log_tail(), failures)

    async def _failed(self, run_id: str, kind: JobKind, code: int, tail: str, failures: int) -> None:
        what = f"the {kind} trainer ended with exit status {code} before its work was done"
        shown = tail[-_SHOWN_CHARACTERS:]
        if failures > self._restarts:
            raise Internal(
                f"run {run_id}: {what}, {failures} times without progress; last lines of its log:\n{shown}",
                details={"run": run_id, "exit_status": str(code)},
            )
        metrics.TRAINER_RESTARTS.labels(run_id, kind).inc()
        log.warning("trainer restarts", run=run_id, exit_status=code, failures=failures)
        data = {"exit_status": code, "failures": failures, "log": shown}
        await self._runs.append(run_id, NewEvent(EventKind.TRAINER_RESTART, f"{what}; starting it again", data))
