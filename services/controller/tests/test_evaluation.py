from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from longshore_controller.domain.evaluation import bootstrap_interval, compare, exact_p, pass_at_k, side
from longshore_controller.domain.verdict import decide
from longshore_controller.domain.vocabulary import Verdict

from .builders import a_result


def panel(rewards: list[float | None]) -> list:  # type: ignore[type-arg]
    return [a_result(f"t{i:03}", reward) for i, reward in enumerate(rewards)]


def test_mcnemar_by_hand() -> None:
    # 2 * (1 + 10) / 2**10
    assert exact_p(9, 1) == pytest.approx(2 * 11 / 1024)
    assert exact_p(0, 0) == 1.0
    assert exact_p(5, 5) == 1.0
    assert exact_p(6, 0) == pytest.approx(2 / 64)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_against_scipy_and_symmetric(wins: int, losses: int) -> None:
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert exact_p(wins, losses) == pytest.approx(expected)
    assert exact_p(wins, losses) == pytest.approx(exact_p(losses, wins))


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    # 1 - C(3,2)/C(4,2)
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(4, 3, 2) == 1.0


@given(st.integers(1, 6), st.data())
def test_pass_at_k_is_the_mean_over_subsets(n: int, data: st.DataObject) -> None:
    from itertools import combinations

    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [i < c for i in range(n)]
    subsets = list(combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_comparison_by_hand() -> None:
    base = panel([1.0, 0.0, 0.0, 1.0, 0.0, None])
    final = panel([1.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    found = compare("test", base, final, seed=1)
    assert (found.n, found.wins, found.ties, found.losses) == (6, 3, 2, 1)
    assert found.mcnemar_p == pytest.approx(10 / 16)
    assert found.test == "mcnemar_exact"
    assert found.base.solved == 2
    assert found.base.rate == pytest.approx(2 / 6)
    assert found.base.scored_rate == pytest.approx(2 / 5)
    assert found.base.absent == 1
    assert found.base.endings == {"agent_done": 5, "verifier_timeout": 1}
    assert (found.wins_scored_only, found.losses_scored_only) == (2, 1)
    assert found.difference == pytest.approx(2 / 6)
    assert found.tokens_ratio == pytest.approx(1.0)


def test_partial_reward_is_not_solved() -> None:
    assert side([a_result("a", 0.99), a_result("b", 1.0)]).solved == 1


def test_k_samples_use_the_sign_test_on_tasks() -> None:
    def rows(counts: list[int]) -> list:  # type: ignore[type-arg]
        return [a_result(f"t{i}", float(j < c), j) for i, c in enumerate(counts) for j in range(3)]

    found = compare("test", rows([0, 1, 2, 3]), rows([1, 3, 2, 1]), seed=1)
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.test == "sign_test"
    assert found.mcnemar_p is None
    assert found.p_value == pytest.approx(1.0)
    assert found.base.pass_at_k["1"] == pytest.approx(6 / 12)
    # C(3-c, 2)/C(3, 2) is 1, 1/3, 0, 0
    assert found.base.pass_at_k["2"] == pytest.approx((0 + 2 / 3 + 1 + 1) / 4)
    assert found.final.top_task_share == pytest.approx(3 / 7)


def test_ratios_compare_costs() -> None:
    base = [a_result("a", 0.0, completion_tokens=10, agent_s=2.0)]
    final = [a_result("a", 1.0, completion_tokens=15, agent_s=1.0)]
    found = compare("test", base, final, seed=1)
    assert (found.tokens_ratio, found.time_ratio) == (1.5, 0.5)


def test_ratio_to_nothing_is_absent() -> None:
    found = compare("test", [a_result("a", 0.0, completion_tokens=0)], [a_result("a", 1.0)], seed=1)
    assert found.tokens_ratio is None


def test_bootstrap_is_seeded_and_near_the_normal_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([-1.0, 0.0, 1.0], size=200, p=[0.1, 0.5, 0.4])
    low, high = bootstrap_interval(list(values), 3)
    assert bootstrap_interval(list(values), 3) == (low, high)
    half = 1.96 * values.std() / math.sqrt(200)
    assert low == pytest.approx(values.mean() - half, abs=0.015)
    assert high == pytest.approx(values.mean() + half, abs=0.015)


def test_only_common_tasks_are_paired() -> None:
    found = compare("test", panel([1.0, 0.0]), panel([1.0, 0.0, 1.0]), seed=1)
    assert found.n == 2
    assert found.final.attempts == 3


def verdict_of(base: list[float | None], final: list[float | None]) -> tuple[Verdict, str]:
    decision = decide(compare("test", panel(base), panel(final), seed=1))
    return decision.verdict, decision.rule


def test_improved_and_worse() -> None:
    zeros: list[float | None] = [0.0] * 20
    better: list[float | None] = [1.0] * 10 + [0.0] * 10
    verdict, rule = verdict_of(zeros, better)
    assert verdict is Verdict.IMPROVED
    assert "10 wins and 0 losses" in rule
    assert verdict_of(better, zeros)[0] is Verdict.WORSE


def test_no_difference_needs_a_narrow_interval() -> None:
    same: list[float | None] = [1.0, 0.0] * 50
    assert verdict_of(same, same)[0] is Verdict.NO_DIFFERENCE
    verdict, rule = verdict_of([0.0] * 10 + [1.0] * 10, [0.0] * 7 + [1.0] * 3 + [1.0] * 9 + [0.0])
    assert verdict is Verdict.INCONCLUSIVE
    assert "use more tasks" in rule


def test_five_tasks_cannot_decide() -> None:
    verdict, rule = verdict_of([0.0] * 5, [1.0] * 5)
    assert verdict is Verdict.INCONCLUSIVE
    assert "5 tasks cannot decide" in rule


def test_missing_rewards_do_not_make_an_improvement() -> None:
    base: list[float | None] = [None] * 8 + [1.0] * 32
    verdict, rule = verdict_of(base, [1.0] * 40)
    assert verdict is Verdict.INCONCLUSIVE
    assert "missing rewards decided" in rule
    many: list[float | None] = [None] * 20 + [0.0] * 20
    assert "no reward" in verdict_of(many, [1.0] * 40)[1]


def test_nothing_evaluated_is_inconclusive_and_says_that_training_is_no_evidence() -> None:
    decision = decide(None)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "Training reward" in decision.note
