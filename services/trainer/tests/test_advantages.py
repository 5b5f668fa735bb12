import numpy as np
import pytest

from longshore_trainer.domain.advantages import ESTIMATORS, group_advantages, is_zero_variance
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.vocabulary import AdvantageEstimator

GRPO = PolicyHyperparameters()
RLOO = PolicyHyperparameters(advantage=AdvantageEstimator.RLOO)


def test_every_estimator_is_registered() -> None:
    assert set(ESTIMATORS) == set(AdvantageEstimator)


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # mean .5, ddof 1 std sqrt(1/3) = .57735; .5 / (.57735 + 1e-6) = .866024
    advantages = group_advantages([1.0, 1.0, 0.0, 0.0], GRPO)
    assert advantages == pytest.approx([0.866024, 0.866024, -0.866024, -0.866024], abs=1e-6)


def test_grpo_without_std_is_dr_grpo() -> None:
    hp = PolicyHyperparameters(advantage_std=False)
    assert group_advantages([1.0, 0.0, 0.0, 0.0], hp).tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("absent_at", [0, 1, 2])
def test_absent_reward_is_out_of_the_baseline_trl_5775(absent_at: int) -> None:
    """TRL #5775/#2737, stella #3264: [1, None, 0] has mean .5 over the scored, not 1/3."""
    rewards: list[float | None] = [1.0, 0.0]
    rewards.insert(absent_at, None)
    advantages = group_advantages(rewards, GRPO)
    assert np.isnan(advantages[absent_at])
    assert np.delete(advantages, absent_at) == pytest.approx([0.70710578, -0.70710578], abs=1e-6)


def test_rloo_leaves_its_own_reward_out() -> None:
    # first: 1 - (0 + 0.5) / 2 = .75; second: 0 - .75; third: .5 - .5
    assert group_advantages([1.0, 0.0, 0.5], RLOO) == pytest.approx([0.75, -0.75, 0.0])


@pytest.mark.parametrize("hp", [GRPO, RLOO])
@pytest.mark.parametrize("rewards", [[1.0], [1.0, None, None], [0.5, 0.5, 0.5], [None, 0.3, 0.3]])
def test_singleton_and_zero_variance_groups_have_no_advantage(
    hp: PolicyHyperparameters, rewards: list[float | None]
) -> None:
    """rLLM and SkyRL give a singleton its raw reward (mean 0, std 1)."""
    advantages = group_advantages(rewards, hp)
    assert is_zero_variance(rewards)
    assert all(a == 0 if r is not None else np.isnan(a) for a, r in zip(advantages, rewards, strict=True))


def test_a_group_without_scores_has_no_advantages() -> None:
    assert np.isnan(group_advantages([None, None], GRPO)).all()


def test_negative_advantages_are_scaled_after_normalisation() -> None:
    hp = PolicyHyperparameters(negative_advantage_scale=0.5)
    assert group_advantages([1.0, 0.0], hp) == pytest.approx([0.70710578, -0.35355289], abs=1e-6)


def test_groups_are_centred_each_by_itself_rllm_605() -> None:
    """rLLM #605/#924: groups keyed per trajectory give raw rewards."""
    assert group_advantages([1.0, 0.0, 1.0, 0.0], PolicyHyperparameters(advantage_std=False)).sum() == 0
