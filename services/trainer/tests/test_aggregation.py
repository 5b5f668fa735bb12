import numpy as np
import pytest

from longshore_trainer.domain.aggregation import attempt_token_weights
from longshore_trainer.domain.vocabulary import Aggregation


def weights(tokens: list[int], kind: Aggregation) -> np.ndarray:
    return attempt_token_weights(np.array(tokens), kind, norm_length=10)


def test_token_mean_is_global_prime_rl_2358() -> None:
    """prime-rl #2358/#2562: ranks with 5 and 1 tokens; each token weighs 1/6, not 1/10 and 1/2."""
    assert weights([5, 1], Aggregation.TOKEN_MEAN) == pytest.approx([1 / 6, 1 / 6])


def test_mean_of_means_is_not_the_token_mean_skyrl_925() -> None:
    """SkyRL #925/#1296: 100 tokens at .5 and 900 at .3 have token mean .32; the mean of means is .40."""
    tokens, values = np.array([100, 900]), np.array([0.5, 0.3])
    assert (weights([100, 900], Aggregation.TOKEN_MEAN) * tokens * values).sum() == pytest.approx(0.32)
    assert (weights([100, 900], Aggregation.SEQ_MEAN_TOKEN_MEAN) * tokens * values).sum() == pytest.approx(0.40)


def test_dr_grpo_norm_uses_a_constant_length() -> None:
    assert weights([5, 1], Aggregation.SEQ_MEAN_TOKEN_SUM_NORM) == pytest.approx([1 / 20, 1 / 20])


@pytest.mark.parametrize("kind", list(Aggregation))
def test_attempts_without_trained_tokens_enter_no_denominator(kind: Aggregation) -> None:
    assert weights([4, 0, 4], kind)[[0, 2]] == pytest.approx(weights([4, 4], kind))
    assert weights([4, 0, 4], kind)[1] == 0
    assert weights([0, 0], kind).tolist() == [0, 0]


@pytest.mark.parametrize("kind", [Aggregation.TOKEN_MEAN, Aggregation.SEQ_MEAN_TOKEN_MEAN])
def test_means_weigh_one_in_total(kind: Aggregation) -> None:
    tokens = [3, 1, 7, 0, 2]
    assert (weights(tokens, kind) * tokens).sum() == pytest.approx(1.0)
