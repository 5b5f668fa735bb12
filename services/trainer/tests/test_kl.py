import math

import pytest
import torch

from longshore_trainer.domain.kl import kl_estimate
from longshore_trainer.domain.vocabulary import KlEstimator


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(KlEstimator.K1, 0.5), (KlEstimator.K2, 0.125), (KlEstimator.K3, math.exp(-0.5) + 0.5 - 1)],
)
def test_hand_computed(kind: KlEstimator, expected: float) -> None:
    logprobs, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert float(kl_estimate(kind, logprobs, reference, torch.tensor([True]))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", list(KlEstimator))
def test_tool_tokens_do_not_count_skyrl_354(kind: KlEstimator) -> None:
    """SkyRL #354: tool tokens inflated the mismatch metric."""
    logprobs, reference = torch.tensor([-1.0, -9.0, -2.0]), torch.tensor([-1.0, math.nan, -2.0])
    estimate = kl_estimate(kind, logprobs, reference, torch.tensor([True, False, True]))
    assert estimate.tolist() == [0.0, 0.0, 0.0]


def test_k3_is_never_negative_for_tiny_differences() -> None:
    logprobs = torch.full((1000,), -1.0) + torch.linspace(-1e-4, 1e-4, 1000)
    estimate = kl_estimate(KlEstimator.K3, logprobs, torch.full((1000,), -1.0), torch.ones(1000, dtype=torch.bool))
    assert float(estimate.min()) >= 0.0


@pytest.mark.parametrize("kind", list(KlEstimator))
def test_estimates_agree_with_the_true_kl_on_average(kind: KlEstimator) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.45, 0.32, 0.23])
    drawn = torch.multinomial(p, 200_000, replacement=True, generator=generator)
    mask = torch.ones(200_000, dtype=torch.bool)
    estimate = kl_estimate(kind, p.log()[drawn], q.log()[drawn], mask).double().mean()
    truth = float((p * (p / q).log()).sum())
    assert float(estimate) == pytest.approx(truth, abs=6e-4)
