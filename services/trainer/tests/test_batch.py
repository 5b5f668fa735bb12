import numpy as np
import pytest

from longshore.trajectory.v1 import trajectory_pb2
from longshore_common.errors import InvalidSpec
from longshore_common.tensors import pack_f32, pack_i32, pack_u8
from longshore_trainer.clients.trajectory import parse_batch
from longshore_trainer.domain.batch import Attempt, Batch, Group, Segment, attempt_tokens, make_examples, statistics
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters

HP = PolicyHyperparameters()


def segment(mask: list[int], logprob: float = -1.0) -> Segment:
    mask_T = np.array(mask, dtype=np.bool_)
    return Segment(
        token_ids_T=np.arange(len(mask), dtype=np.int32),
        loss_mask_T=mask_T,
        logprobs_T=np.where(mask_T, np.float32(logprob), np.float32(0)),
        versions_T=np.where(mask_T, 0, -1).astype(np.int32),
    )


def attempt(name: str, reward: float | None, *segments: Segment, staleness: int = 0) -> Attempt:
    return Attempt(name, reward, staleness, segments or (segment([0, 1, 1]),))


def batch(*groups: list[Attempt]) -> Batch:
    return Batch("b", 1, tuple(Group(f"g{i}", tuple(attempts)) for i, attempts in enumerate(groups)))


def test_every_segments_own_tokens_get_the_advantage_skyrl_1492() -> None:
    """SkyRL #1492/#1507: with two steps, the advantage landed on the last step's positions."""
    two_turns = attempt("a", 1.0, segment([0, 1, 1, 0]), segment([0, 0, 0, 1]))
    examples = make_examples(batch([two_turns, attempt("b", 0.0)]), HP)
    expected = pytest.approx(0.70710578, abs=1e-6)
    assert examples[0].advantages_T.tolist() == [0, expected, expected, 0]
    assert examples[1].advantages_T.tolist() == [0, 0, 0, expected]
    assert [example.attempt for example in examples] == [0, 0, 1]
    assert attempt_tokens(examples).tolist() == [3, 2]


def test_absent_rewards_enter_neither_baseline_nor_loss_stella_3264() -> None:
    given = batch([attempt("a", 1.0), attempt("b", None), attempt("c", 0.0)])
    examples = make_examples(given, HP)
    assert len(examples) == 2
    assert examples[0].advantages_T[1] == pytest.approx(0.70710578, abs=1e-6)
    figures = statistics(given)
    assert (figures.attempts_scored, figures.attempts_failed, figures.reward_mean) == (2, 1, 0.5)


def test_zero_variance_groups_are_counted_and_stay_in_the_batch() -> None:
    given = batch([attempt("a", 1.0), attempt("b", 1.0)], [attempt("c", 1.0), attempt("d", 0.0)], [attempt("e", 0.5)])
    assert statistics(given).zero_variance_groups == 2
    examples = make_examples(given, HP)
    assert len(examples) == 5
    assert not examples[0].advantages_T.any()


def test_garbage_behind_the_mask_is_not_read_skyrl_1305() -> None:
    dirty = segment([0, 1, 0])
    dirty.logprobs_T[2] = np.nan
    (example,) = make_examples(batch([attempt("a", 1.0, dirty)]), HP)
    assert np.isfinite(example.behaviour_T).all()


def test_staleness_is_that_of_scored_attempts() -> None:
    late = [attempt("a", 1.0, staleness=1), attempt("b", 0.0, staleness=2), attempt("c", None, staleness=9)]
    figures = statistics(batch(late))
    assert (figures.staleness_mean, figures.staleness_max) == (1.5, 2)


def test_empty_batch_has_figures() -> None:
    figures = statistics(batch([attempt("a", None)]))
    assert (figures.reward_mean, figures.attempts_scored, figures.zero_variance_groups) == (0.0, 0, 1)
    assert make_examples(batch([attempt("a", None)]), HP) == []


def proto_batch(**changes: bytes) -> bytes:
    arrays = {
        "token_ids": pack_i32([5, 6, 7]),
        "loss_mask": pack_u8([0, 1, 1]),
        "logprobs": pack_f32([0, -0.5, -1]),
        "versions": pack_i32([-1, 3, 3]),
    } | changes
    message = trajectory_pb2.TrainAttempt(
        attempt_id="g-0", reward=0.5, segments=[trajectory_pb2.Segment(length=3, **arrays)]
    )
    failed = trajectory_pb2.TrainAttempt(attempt_id="g-1")
    group = trajectory_pb2.TrainGroup(group_id="g", attempts=[message, failed])
    return trajectory_pb2.Batch(batch_id="b", step=4, groups=[group]).SerializeToString()


def test_a_batch_survives_the_wire() -> None:
    parsed = parse_batch(proto_batch())
    assert (parsed.step, parsed.group_ids) == (4, ["g"])
    scored, failed = parsed.groups[0].attempts
    assert (scored.reward, failed.reward) == (0.5, None)
    assert scored.segments[0].token_ids_T.tolist() == [5, 6, 7]
    assert scored.segments[0].loss_mask_T.tolist() == [False, True, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": pack_f32([0, -0.5])},
        {"loss_mask": pack_u8([1, 1, 1]), "versions": pack_i32([3, 3, 3])},
        {"versions": pack_i32([-1, -1, 3])},
    ],
    ids=["rllm_816_shifted_logprobs", "first_token_sampled", "token_without_version"],
)
def test_misaligned_segments_are_refused(changes: dict[str, bytes]) -> None:
    with pytest.raises(InvalidSpec, match="g-0"):
        parse_batch(proto_batch(**changes))
