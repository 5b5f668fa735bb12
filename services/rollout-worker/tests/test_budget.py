import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_rollout_worker.domain.budget import AgentLimits, Budget
from longshore_rollout_worker.domain.vocabulary import Termination


@pytest.mark.parametrize(
    ("limits", "turns", "tokens", "now", "end"),
    [
        (AgentLimits(), 99, 10**9, 1e9, None),
        (AgentLimits(max_turns=2), 1, 0, 0, None),
        (AgentLimits(max_turns=2), 2, 0, 0, Termination.TURN_LIMIT),
        (AgentLimits(max_tokens=10), 1, 9, 0, None),
        (AgentLimits(max_tokens=10), 1, 10, 0, Termination.TOKEN_LIMIT),
        (AgentLimits(timeout_s=5), 1, 0, 4.9, None),
        (AgentLimits(timeout_s=5), 1, 0, 5, Termination.AGENT_TIMEOUT),
        (AgentLimits(max_turns=1, max_tokens=1, timeout_s=5), 1, 1, 5, Termination.AGENT_TIMEOUT),
        (AgentLimits(max_turns=1, max_tokens=1, timeout_s=5), 1, 1, 1, Termination.TOKEN_LIMIT),
    ],
)
def test_limits(limits: AgentLimits, turns: int, tokens: int, now: float, end: Termination | None) -> None:
    budget = Budget(limits, 0.0)
    for turn in range(turns):
        budget.add_turn(tokens if turn == 0 else 0)
    assert budget.exhausted(now) is end


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20))
def test_time_in_queues_is_never_the_agents(calls: list[tuple[float, float]]) -> None:
    """Each call takes (queued, sampled) seconds: only the second counts."""
    budget, now, own = Budget(AgentLimits(timeout_s=1.0), 0.0), 0.0, 0.0
    for queued, sampled in calls:
        now += queued + sampled
        own += sampled
        budget.add_queued(queued)
    assert budget.elapsed_s(now) == pytest.approx(own, abs=1e-6)
