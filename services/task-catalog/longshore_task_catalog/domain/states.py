"""The state of a task follows from its evidence and from nothing else.

    NEEDS_PROBE -> EVALUABLE -> TRAINABLE, or REJECTED, or FLAKY

Only evidence from the newest probed image counts. There the latest oracle and the latest nop decide, so that a
rejection for what was wrong around the task can be lifted by probing again; but runs of one probe that differ make a
task flaky for as long as its image stays. Infrastructure failures say nothing about a task.
"""

from __future__ import annotations

from collections.abc import Sequence

from longshore_task_catalog.domain.model import Evidence, EvidenceKind, TaskState

FULL_REWARD = 1.0
TASK_FAULTS = frozenset({"reward_missing", "reward_malformed", "verifier_timeout"})
"""Failures that the task's own tests cause: with the oracle they count against the task."""

NO_SOLUTION = "no solution/solve.sh: the oracle cannot run, so the task cannot be probed"


def is_infrastructure(failure: str) -> bool:
    """Whether a failure says nothing about the task."""
    return failure not in TASK_FAULTS


def derive(evidence: Sequence[Evidence]) -> tuple[TaskState, str]:
    """State and reason from all evidence, oldest first."""
    probes = [one for one in evidence if one.kind in (EvidenceKind.ORACLE, EvidenceKind.NOP) and _conclusive(one)]
    if probes:
        image = probes[-1].image_digest
        probes = [one for one in probes if one.image_digest == image]
    verdict = _probe_verdict(probes)
    if verdict is None:
        return TaskState.NEEDS_PROBE, _last_failure(evidence)
    state, reason = verdict
    if state is TaskState.EVALUABLE and any(_varies(one) for one in evidence):
        return TaskState.TRAINABLE, ""
    return state, reason


def _conclusive(evidence: Evidence) -> bool:
    return bool(evidence.rewards) or any(not is_infrastructure(failure) for failure in evidence.failures)


def _varies(evidence: Evidence) -> bool:
    return evidence.kind is EvidenceKind.REFERENCE and evidence.token_exact and len(set(evidence.rewards)) > 1


def _probe_verdict(probes: Sequence[Evidence]) -> tuple[TaskState, str] | None:
    """None while oracle or nop has not come to an end."""
    oracle = [one for one in probes if one.kind is EvidenceKind.ORACLE]
    nops = [one for one in probes if one.kind is EvidenceKind.NOP]
    for one in (*oracle, *nops):
        passed, runs = _passed(one), _count(one)
        if 0 < passed < runs:
            return TaskState.FLAKY, f"{one.kind} was rewarded 1.0 in {passed} of {runs} runs: {_runs(one)}"
    if oracle and not _passed(oracle[-1]):
        return TaskState.REJECTED, f"oracle never passed: {_runs(oracle[-1])}"
    if nops and _passed(nops[-1]):
        return TaskState.REJECTED, "doing nothing is rewarded 1.0: the tests do not test the work"
    if not (_ended(oracle) and _ended(nops)):
        return None
    return TaskState.EVALUABLE, ""


def _passed(evidence: Evidence) -> int:
    return sum(reward == FULL_REWARD for reward in evidence.rewards)


def _count(evidence: Evidence) -> int:
    """Runs that say something about the task."""
    return len(evidence.rewards) + sum(not is_infrastructure(failure) for failure in evidence.failures)


def _ended(probes: Sequence[Evidence]) -> bool:
    """Whether one of the probes went through all its runs."""
    return any(not any(map(is_infrastructure, one.failures)) for one in probes)


def _runs(evidence: Evidence) -> str:
    faults = [failure for failure in evidence.failures if not is_infrastructure(failure)]
    return ", ".join([*(f"reward {reward:g}" for reward in evidence.rewards), *faults])


def _last_failure(evidence: Sequence[Evidence]) -> str:
    for one in reversed(evidence):
        if one.failures:
            return f"{one.kind} did not end: {', '.join(one.failures)}" + (f" ({one.detail})" if one.detail else "")
    return ""


def is_settled(evidence: Sequence[Evidence], state: TaskState, repeats: int) -> bool:
    """Whether a probe with that many oracle repeats would add nothing."""
    if state in (TaskState.REJECTED, TaskState.FLAKY):
        return True
    if state is TaskState.NEEDS_PROBE:
        return False
    oracle = [one for one in evidence if one.kind is EvidenceKind.ORACLE and _conclusive(one)]
    return bool(oracle) and len(oracle[-1].rewards) >= repeats
