"""domain/staleness and the take-time judgement on it."""

from __future__ import annotations

import pytest

from longshore_trajectory_store.domain.attempts import AttemptState
from longshore_trajectory_store.domain.batches import TakeRequest, stale_attempts
from longshore_trajectory_store.domain.outcomes import Failed, Failure, Scored, Termination
from longshore_trajectory_store.domain.staleness import staleness, usable

from .builders import an_attempt


def scored(start_version: int):
    outcome = Scored(1.0, Termination.AGENT_DONE)
    return an_attempt(state=AttemptState.SEALED, outcome=outcome, trainable=True, start_version=start_version)


def test_queue_time_counts() -> None:
    """prime-rl #2674, #3313: a rollout of v0 finishes at once and waits; at step 10 its lag is 9, above 8."""
    assert staleness(10, 0) == 9
    request = TakeRequest("run", 1, 10, 8, 1)
    assert stale_attempts(request, [scored(0)]) == ["g1-0"]
    assert stale_attempts(request, [scored(1)]) == []


def test_one_version_is_one_step_of_lag() -> None:
    """prime-rl #1764: one version bump makes the lag one more, not two."""
    assert [staleness(step, 0) for step in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(("start", "ok"), [(2, False), (3, True), (4, True), (5, False)])
def test_a_version_that_this_trainer_has_not_produced_is_unusable(start: int, ok: bool) -> None:
    assert usable(5, start, max_staleness=1) is ok


def test_failed_attempts_are_not_judged() -> None:
    failed = an_attempt(state=AttemptState.SEALED, outcome=Failed(Failure.ENGINE))
    assert stale_attempts(TakeRequest("run", 1, 10, 0, 1), [failed]) == []
