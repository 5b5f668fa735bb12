import pytest

from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.schedule import learning_rate
from longshore_trainer.domain.vocabulary import Schedule


def rates(schedule: Schedule) -> list[float]:
    hp = PolicyHyperparameters(learning_rate=1.0, warmup_steps=2, schedule=schedule)
    return [learning_rate(step, 6, hp) for step in range(1, 7)]


def test_linear_decays_to_just_above_zero() -> None:
    assert rates(Schedule.LINEAR) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_constant_stays() -> None:
    assert rates(Schedule.CONSTANT) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_cosine_falls_from_peak_and_is_half_in_the_middle() -> None:
    found = rates(Schedule.COSINE)
    assert found[2] == pytest.approx(1.0)
    assert found[4] == pytest.approx(0.5)
    assert found == sorted(found[:2]) + sorted(found[2:], reverse=True)
