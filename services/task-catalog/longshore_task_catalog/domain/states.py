"""The state of a task follows from its evidence and from nothing else.

    NEEDS_PROBE -> EVALUABLE -> TRAINABLE, or REJECTED, or FLAKY

Evidence is compared within one image: the newest one that was probed. Infrastructure failures say nothing about a task.
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


def _ended(probes: Sequence[Evidence], kind: EvidenceKind) -> bool:
    """Whether one probe of this kind went through all its runs."""
    return any(one.kind is kind and not any(map(is_infrastructure, one.failures)) for one in probes)


def _varies(evidence: Evidence) -> bool:
    return evidence.kind is EvidenceKind.REFERENCE and evidence.token_exact and len(set(evidence.rewards)) > 1


def _probe_verdict(probes: Sequence[Evidence]) -> tuple[TaskState, str] | None:
    """None while oracle or nop has not come to an end."""
    nops = [reward for one in probes if one.kind is EvidenceKind.NOP for reward in one.rewards]
    oracle = [one for one in probes if one.kind is EvidenceKind.ORACLE]
    rewards = [reward for one in oracle for reward in one.rewards]
    faults = [failure for one in oracle for failure in one.failures if not is_infrastructure(failure)]
    passed = sum(reward == FULL_REWARD for reward in rewards)
    runs = len(rewards) + len(faults)
    if passed and passed < runs:
        return TaskState.FLAKY, f"oracle passed {passed} of {runs} times: {_runs(rewards, faults)}"
    if runs and not passed:
        return TaskState.REJECTED, f"oracle never passed: {_runs(rewards, faults)}"
    full = sum(reward == FULL_REWARD for reward in nops)
    if full and full < len(nops):
        return TaskState.FLAKY, f"doing nothing was rewarded 1.0 in {full} of {len(nops)} runs"
    if full:
        return TaskState.REJECTED, "doing nothing is rewarded 1.0: the tests do not test the work"
    if not (_ended(probes, EvidenceKind.ORACLE) and _ended(probes, EvidenceKind.NOP)):
        return None
    return TaskState.EVALUABLE, ""


def _runs(rewards: Sequence[float], faults: Sequence[str]) -> str:
    return ", ".join([*(f"reward {reward:g}" for reward in rewards), *faults])


def _last_failure(evidence: Sequence[Evidence]) -> str:
    for one in reversed(evidence):
        if one.failures:
            return f"{one.kind} did not end: {', '.join(one.failures)}" + (f" ({one.detail})" if one.detail else "")
    return ""


def is_settled(evidence: Sequence[Evidence], state: TaskState, repeats: int) -> bool:
    """Whether a probe with that many oracle repeats would add nothing to what the newest probed image showed."""
    if state in (TaskState.REJECTED, TaskState.FLAKY):
        return True
    if state is TaskState.NEEDS_PROBE:
        return False
    oracle = [one for one in evidence if one.kind is EvidenceKind.ORACLE and one.rewards]
    image = oracle[-1].image_digest if oracle else ""
    return sum(len(one.rewards) for one in oracle if one.image_digest == image) >= repeats
