"""The state machine of a run: which moves are allowed, and what each state means for its driver."""

from __future__ import annotations

from longshore_common.errors import Conflict
from longshore_controller.domain.vocabulary import RunState

PHASES: tuple[RunState, ...] = (RunState.WARMING, RunState.SERVING, RunState.TRAINING, RunState.EVALUATING)
"""In order. Each is idempotent: a resumed run goes through them again, and what is done is skipped."""

ACTIVE = frozenset(PHASES)
FINISHED = frozenset({RunState.SUCCEEDED, RunState.STOPPED, RunState.FAILED})
RESUMABLE = frozenset({RunState.INTERRUPTED, RunState.STOPPED, RunState.FAILED})
STOPPABLE = ACTIVE | {RunState.PENDING, RunState.INTERRUPTED}

_ENDS = {RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED}
_NEXT: dict[RunState, set[RunState]] = {
    RunState.PENDING: {RunState.WARMING, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED},
    RunState.WARMING: {RunState.SERVING, *_ENDS},
    RunState.SERVING: {RunState.TRAINING, *_ENDS},
    RunState.TRAINING: {RunState.EVALUATING, *_ENDS},
    RunState.EVALUATING: {RunState.SUCCEEDED, *_ENDS},
    RunState.INTERRUPTED: {RunState.PENDING, RunState.STOPPED},
    RunState.STOPPED: {RunState.PENDING},
    RunState.FAILED: {RunState.PENDING},
    RunState.SUCCEEDED: set(),
}


def check_move(run_id: str, current: RunState, target: RunState) -> None:
    """Raises Conflict when a run in `current` cannot become `target`."""
    if target in _NEXT[current]:
        return
    allowed = ", ".join(sorted(_NEXT[current])) or "nothing: it has ended"
    raise Conflict(
        f"run {run_id} is {current} and cannot become {target}; from here it can become {allowed}",
        details={"run": run_id, "state": current.value},
    )


def check_resumable(run_id: str, state: RunState) -> None:
    """Raises Conflict when there is nothing to resume."""
    if state in RESUMABLE:
        return
    hint = "submit a new one" if state is RunState.SUCCEEDED else "it goes on already"
    raise Conflict(
        f"run {run_id} is {state} and cannot be resumed: {hint}", details={"run": run_id, "state": state.value}
    )
