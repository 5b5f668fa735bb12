import pytest

from longshore_reward_verifier.domain.decision import NextStep, after_first_grade, after_oracle, after_regrade
from longshore_reward_verifier.domain.outcome import Failure, Graded, GradeFailed, TamperResistance, TestRun


def graded(reward: float) -> Graded:
    return Graded(reward, {}, "reward.txt", "", "", "", TestRun(), TamperResistance.WEAK)


def failed(failure: Failure) -> GradeFailed:
    return GradeFailed(failure, "seen")


REACHABLE_BY_AN_AGENT = {
    Failure.VERIFIER_TIMEOUT,
    Failure.REWARD_MISSING,
    Failure.REWARD_MALFORMED,
    Failure.SANDBOX_OOM,
}


@pytest.mark.parametrize("failure", list(Failure))
def test_only_what_an_agent_can_reach_is_graded_again(failure: Failure) -> None:
    again = failure in REACHABLE_BY_AN_AGENT
    assert after_first_grade(failed(failure), True) is (NextStep.REGRADE if again else NextStep.FAIL)
    assert after_first_grade(failed(failure), False) is NextStep.FAIL
    assert after_regrade(failed(failure)) is (NextStep.RUN_ORACLE if again else NextStep.FAIL)


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_a_reward_stands(reward: float) -> None:
    assert after_first_grade(graded(reward), True) is NextStep.ACCEPT
    assert after_regrade(graded(reward)) is NextStep.ACCEPT


@pytest.mark.parametrize(
    ("oracle", "step"),
    [
        (graded(1.0), NextStep.BLAME_AGENT),
        (graded(0.99), NextStep.FAIL),
        (graded(0.0), NextStep.FAIL),
        *((failed(failure), NextStep.FAIL) for failure in Failure),
    ],
)
def test_the_agent_is_blamed_only_when_the_oracle_is_fully_rewarded(
    oracle: Graded | GradeFailed, step: NextStep
) -> None:
    assert after_oracle(oracle) is step
