"""Follows the demo's run: its events become progress."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from longshore_cli.demo.progress import Progress
from longshore_cli.errors import CliError, ExitCode

STAGE_OF_STATE = {
    "warming": "warm start",
    "serving": "engine",
    "training": "training",
    "evaluating": "evaluation",
}
SAID_TOGETHER = {
    "lease.expired": "attempts leased again: their worker was silent",
    "attempt.retried": "attempts leased again after a failure",
    "attempt.failed": "attempts failed for good, without a reward",
}
_ORDER = list(STAGE_OF_STATE.values())


class RunProgress:
    """Maps a run's events to the demo's stages."""

    def __init__(self, progress: Progress, first_step: int, total_steps: int) -> None:
        self._progress = progress
        self._step = first_step
        self._total = max(total_steps, 1)
        self._current = ""
        self._repeated: Counter[str] = Counter()

    def enter(self, state: str) -> None:
        """The run moved to this state; earlier stages are over."""
        name = STAGE_OF_STATE.get(state)
        if name is None or name == self._current:
            return
        for earlier in _ORDER[: _ORDER.index(name)]:
            self._progress.skip(earlier, "done before")
            self._progress.end(earlier)
        self._current = name
        self._progress.begin(name, fraction=self._step / self._total if name == "training" else 0.0)

    def take(self, kind: str, message: str, data: dict[str, Any]) -> None:
        """One event. A dead worker's many attempts are one line, not one each."""
        if kind in SAID_TOGETHER:
            self._repeated[kind] += 1
            return
        self._say_repeated()
        if kind == "run.state":
            self.enter(str(data.get("state", "")))
        elif kind == "warm_start":
            step, total = data.get("step"), data.get("total_steps")
            if step is not None and total:
                self._progress.update("warm start", float(step) / float(total), message)
                return
            self._progress.say("warm start", message)
        elif kind == "step":
            self._step = int(data.get("step", self._step + 1))
            self._progress.update("training", self._step / self._total)
            self._progress.say("training", message)
        else:
            self._progress.say(self._current or "run", message)

    def _say_repeated(self) -> None:
        for kind, count in self._repeated.items():
            self._progress.say(self._current or "run", f"{count} {SAID_TOGETHER[kind]}")
        self._repeated.clear()

    def finish(self) -> None:
        """The run has ended well."""
        self._say_repeated()
        for name in _ORDER:
            self._progress.skip(name, "done before")
            self._progress.end(name)


async def ensure_run(stub: Any, spec_yaml: str, key: str) -> tuple[Any, int]:
    """The demo's run (submitted, found again, or resumed), and the newest event from before."""
    from longshore.controller.v1 import controller_pb2
    from longshore_cli.commands.run import state_of

    answer = await stub.SubmitRun(controller_pb2.SubmitRunRequest(spec_yaml=spec_yaml, idempotency_key=key))
    if answer.created:
        return answer.run, 0
    # Before it goes on, so that none of its new events is taken for an old one.
    after = await _last_sequence(stub, answer.run.run_id)
    if state_of(answer.run) in ("interrupted", "stopped", "failed"):
        resumed = await stub.ResumeRun(controller_pb2.ResumeRunRequest(run=answer.run.run_id))
        return resumed.run, after
    return answer.run, after


async def watch_run(stub: Any, run: Any, after: int, progress: Progress) -> Any:
    """Follows the run to its end by its events after `after`; returns it.

    Raises:
        CliError: it did not succeed.
    """
    from longshore.controller.v1 import controller_pb2
    from longshore_cli.commands.run import state_of
    from longshore_common.grpc_client import mapped_stream

    shown = RunProgress(progress, run.step, run.total_steps)
    shown.enter(state_of(run))
    request = controller_pb2.WatchEventsRequest(run=run.run_id, after=after, until_done=True)
    async for answer in mapped_stream(stub.WatchEvents(request)):
        event = answer.event
        shown.take(event.kind, event.message, json.loads(event.data_json or "{}"))
    ended = (await stub.GetRun(controller_pb2.GetRunRequest(run=run.run_id))).run
    if state_of(ended) != "succeeded":
        hint = "run the same command again to go on"
        raise CliError(
            f"run {ended.run_id} is {state_of(ended)}: {ended.state_reason or 'see its log'}; {hint}", ExitCode.FINDING
        )
    shown.finish()
    return ended


async def _last_sequence(stub: Any, run_id: str) -> int:
    """Sequence of the newest event, so that a resumed demo does not repeat old ones."""
    import asyncio

    from longshore.controller.v1 import controller_pb2

    call = stub.WatchEvents(controller_pb2.WatchEventsRequest(run=run_id, after=0, until_done=False))
    last = 0
    try:
        while True:
            async with asyncio.timeout(0.5):
                answer = await call.read()
            if not hasattr(answer, "event"):
                return last
            last = answer.event.sequence
    except TimeoutError:
        return last
    finally:
        call.cancel()
