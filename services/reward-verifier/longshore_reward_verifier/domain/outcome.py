"""The words and records of grading: failures by the contracts' names, a graded reward, a verdict."""

from dataclasses import dataclass, field
from enum import StrEnum


class Failure(StrEnum):
    """Why there is no reward; the names of the contracts that a verifier can find."""

    SANDBOX_START = "sandbox_start"
    IMAGE_PULL = "image_pull"
    SANDBOX_LOST = "sandbox_lost"
    SANDBOX_OOM = "sandbox_oom"
    EVICTED = "evicted"
    QUOTA = "quota"
    VERIFIER_SETUP = "verifier_setup"
    VERIFIER_TIMEOUT = "verifier_timeout"
    REWARD_MISSING = "reward_missing"
    REWARD_MALFORMED = "reward_malformed"


# An agent can reach these on purpose, so they are graded once more in fresh conditions.
REGRADABLE = frozenset(
    {Failure.VERIFIER_TIMEOUT, Failure.REWARD_MISSING, Failure.REWARD_MALFORMED, Failure.SANDBOX_OOM}
)


class TamperResistance(StrEnum):
    """How hard it was for the agent to forge its reward."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True)
class TestRun:
    """One run of tests/test.sh: exit status (recorded, never decisive), excerpts of its output, seconds."""

    __test__ = False  # pytest would collect the name

    exit_status: int = 0
    output_head: str = ""
    output_tail: str = ""
    output_truncated: bool = False
    duration_s: float = 0.0


@dataclass(frozen=True)
class Graded:
    """A reward and where it came from."""

    reward: float
    keys: dict[str, float]
    file_name: str
    file_digest: str
    tests_digest: str
    image_digest: str
    run: TestRun
    tamper_resistance: TamperResistance
    ctrf_json: str = ""
    regraded: bool = False


@dataclass(frozen=True)
class GradeFailed:
    """No reward: the failure's name and what was seen. run is what the tests did, when they ran."""

    failure: Failure
    evidence: str
    run: TestRun = field(default_factory=TestRun)
    image_digest: str = ""


GradeResult = Graded | GradeFailed


@dataclass(frozen=True)
class Verdict:
    """What Verify answers. agent_broke_verifier goes with a reward of 0."""

    result: GradeResult
    agent_broke_verifier: bool = False
    first_failure: GradeFailed | None = None
