"""States follow from evidence."""

from __future__ import annotations

import pytest
from catalog_builders import nop, oracle, reference
from hypothesis import given
from hypothesis import strategies as st

from longshore_task_catalog.domain.model import Evidence, EvidenceKind, TaskState
from longshore_task_catalog.domain.states import derive, is_settled

S = TaskState
REFERENCE = EvidenceKind.REFERENCE


@pytest.mark.parametrize(
    ("evidence", "state"),
    [
        ([], S.NEEDS_PROBE),
        ([oracle(1.0)], S.NEEDS_PROBE),
        ([nop(0.0)], S.NEEDS_PROBE),
        ([oracle(1.0), nop(0.0)], S.EVALUABLE),
        ([oracle(1.0, 1.0), nop(0.5)], S.EVALUABLE),
        ([oracle(0.0), nop(0.0)], S.REJECTED),
        ([oracle(0.99), nop(0.0)], S.REJECTED),
        ([oracle(1.0, 0.0, 1.0), nop(0.0)], S.FLAKY),
        ([oracle(1.0), nop(1.0)], S.REJECTED),
        ([oracle(failures=("reward_missing",)), nop(0.0)], S.REJECTED),
        ([oracle(1.0, failures=("verifier_timeout",)), nop(0.0)], S.FLAKY),
        ([oracle(1.0), nop(failures=("reward_missing",))], S.EVALUABLE),
        ([oracle(failures=("sandbox_start",))], S.NEEDS_PROBE),
        ([oracle(1.0, failures=("sandbox_lost",)), nop(0.0)], S.NEEDS_PROBE),
        ([oracle(1.0), nop(failures=("verifier_setup",))], S.NEEDS_PROBE),
        ([oracle(failures=("sandbox_start",)), oracle(1.0), nop(0.0)], S.EVALUABLE),
        ([oracle(1.0), nop(0.0), oracle(failures=("quota",))], S.EVALUABLE),
        ([oracle(1.0), nop(0.0), reference(0.0, 1.0)], S.TRAINABLE),
        ([oracle(1.0), nop(0.0), reference(1.0, 1.0)], S.EVALUABLE),
        ([oracle(1.0), nop(0.0), reference(0.0, 1.0, token_exact=False)], S.EVALUABLE),
        ([reference(0.0, 1.0)], S.NEEDS_PROBE),
        ([oracle(0.0), nop(0.0), reference(0.0, 1.0)], S.REJECTED),
        ([oracle(1.0), nop(0.0), oracle(0.0), nop(0.0)], S.REJECTED),
        ([oracle(0.0), nop(0.0), oracle(1.0), nop(0.0)], S.EVALUABLE),
        ([oracle(1.0, 0.0), nop(0.0), oracle(1.0), nop(0.0)], S.FLAKY),
        ([oracle(1.0, 0.0, image="a"), nop(0.0, image="a"), oracle(1.0, image="b"), nop(0.0, image="b")], S.EVALUABLE),
        ([oracle(0.0, image="a"), nop(0.0, image="a"), oracle(1.0, image="b"), nop(0.0, image="b")], S.EVALUABLE),
        ([oracle(1.0), nop(0.0), nop(1.0)], S.REJECTED),
    ],
)
def test_states(evidence: list[Evidence], state: TaskState) -> None:
    """The oracle gate: GamePhanes#2; repeats: SWE-smith#26; tests that pass without work: SWE-bench#24."""
    assert derive(evidence)[0] is state


def test_reasons_say_what_was_seen() -> None:
    assert (
        derive([oracle(0.0, failures=("reward_missing",)), nop(0.0)])[1]
        == "oracle never passed: reward 0, reward_missing"
    )
    assert derive([oracle(1.0, 0.0), nop(0.0)])[1].startswith("oracle was rewarded 1.0 in 1 of 2 runs")
    assert "sandbox_start" in derive([oracle(failures=("sandbox_start",))])[1]
    assert derive([oracle(1.0), nop(0.0)])[1] == ""


REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=3).map(tuple)
FAILURES = st.lists(st.sampled_from(["sandbox_start", "quota", "verifier_setup", "reward_missing"]), max_size=2).map(
    tuple
)
EVIDENCE = st.builds(
    Evidence, kind=st.sampled_from(EvidenceKind), rewards=REWARDS, failures=FAILURES, image_digest=st.just("i"),
    token_exact=st.booleans(),
)  # fmt: skip


@given(st.lists(EVIDENCE, max_size=6))
def test_infrastructure_failures_never_reject(evidence: list[Evidence]) -> None:
    """Leaving out runs that say nothing never turns a rejection into something else."""
    state, _ = derive(evidence)
    bare = [
        Evidence(
            one.kind, one.rewards, tuple(f for f in one.failures if f == "reward_missing"), "i", 0, "", one.token_exact
        )
        for one in evidence
    ]
    if state in (S.REJECTED, S.FLAKY):
        assert derive(bare)[0] is state
    if not any(one.rewards or "reward_missing" in one.failures for one in evidence):
        assert state is S.NEEDS_PROBE


@given(st.lists(EVIDENCE, max_size=6))
def test_a_good_state_needs_a_full_oracle_and_an_unrewarded_nop(evidence: list[Evidence]) -> None:
    if derive(evidence)[0] in (S.EVALUABLE, S.TRAINABLE):
        oracles = [one for one in evidence if one.kind is EvidenceKind.ORACLE]
        assert any(one.rewards for one in oracles)
        assert set([one for one in oracles if one.rewards][-1].rewards) == {1.0}
        assert not any(0.0 in one.rewards and 1.0 in one.rewards for one in evidence if one.kind is not REFERENCE)


@pytest.mark.parametrize(
    ("evidence", "repeats", "settled"),
    [
        ([], 1, False),
        ([oracle(1.0), nop(0.0)], 1, True),
        ([oracle(1.0), nop(0.0)], 3, False),
        ([oracle(1.0, 1.0, 1.0), nop(0.0)], 3, True),
        ([oracle(0.0), nop(0.0)], 3, True),
        ([oracle(failures=("sandbox_start",))], 1, False),
    ],
)
def test_what_need_not_be_probed_again(evidence: list[Evidence], repeats: int, settled: bool) -> None:
    assert is_settled(evidence, derive(evidence)[0], repeats) is settled
