"""The outcome rule as a table: what follows a grade, a re-grade in fresh conditions, and the oracle's grade."""

from enum import StrEnum

from longshore_reward_verifier.domain.outcome import REGRADABLE, Graded, GradeResult

ORACLE_REWARD = 1.0


class NextStep(StrEnum):
    """What the verifier does next."""

    ACCEPT = "accept"
    REGRADE = "regrade"
    RUN_ORACLE = "run_oracle"
    BLAME_AGENT = "blame_agent"
    FAIL = "fail"


def after_first_grade(result: GradeResult, regrade: bool) -> NextStep:
    """A reward stands. A failure that an agent can cause is graded again when that was asked for."""
    if isinstance(result, Graded):
        return NextStep.ACCEPT
    return NextStep.REGRADE if regrade and result.failure in REGRADABLE else NextStep.FAIL


def after_regrade(result: GradeResult) -> NextStep:
    """The agent's state in a fresh sandbox: a reward stands; the same kind of failure asks whose fault it is."""
    if isinstance(result, Graded):
        return NextStep.ACCEPT
    return NextStep.RUN_ORACLE if result.failure in REGRADABLE else NextStep.FAIL


def after_oracle(result: GradeResult) -> NextStep:
    """The tests work for the oracle: the agent broke them. They do not: the failure is the infrastructure's."""
    oracle_passes = isinstance(result, Graded) and result.reward == ORACLE_REWARD
    return NextStep.BLAME_AGENT if oracle_passes else NextStep.FAIL
