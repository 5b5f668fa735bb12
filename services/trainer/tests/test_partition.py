import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longshore_trainer.domain.partition import length_bucketed, micro_batches, minibatches

LENGTHS = st.lists(st.integers(1, 300), min_size=0, max_size=60)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 1000))
def test_every_example_once_and_equal_counts_on_all_ranks(lengths: list[int], ranks: int, max_tokens: int) -> None:
    parts = micro_batches(lengths, ranks, max_tokens)
    assert len(parts) == ranks
    assert len({len(rank) for rank in parts}) == 1
    assert len(parts[0]) >= 1
    flat = [index for rank in parts for part in rank for index in part]
    assert sorted(flat) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 4), st.integers(1, 1000))
def test_padding_stays_within_the_limit(lengths: list[int], ranks: int, max_tokens: int) -> None:
    for rank in micro_batches(lengths, ranks, max_tokens):
        for part in rank:
            assert len(part) <= 1 or len(part) * max(lengths[i] for i in part) <= max_tokens


@given(st.integers(0, 200), st.integers(1, 64), st.integers(0, 5))
def test_minibatches_are_a_balanced_partition(attempts: int, size: int, seed: int) -> None:
    parts = minibatches(attempts, size, np.random.default_rng(seed))
    assert sorted(index for part in parts for index in part) == list(range(attempts))
    assert all(1 <= len(part) <= size for part in parts)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(0, 5))
def test_length_buckets_keep_batch_sizes_and_visit_everything(lengths: list[int], seed: int) -> None:
    sizes = [4] * 15 + [2] * 10
    plan = length_bucketed(lengths, sizes, bucket_batches=4, seed=seed)
    assert [len(batch) for batch in plan] == sizes
    assert plan == length_bucketed(lengths, sizes, bucket_batches=4, seed=seed)
    counts = np.bincount([index for batch in plan for index in batch], minlength=len(lengths))
    assert counts.max() - counts.min() <= 1


def test_length_buckets_pad_little() -> None:
    lengths = list(np.random.default_rng(0).integers(10, 200, 1000))
    plan = length_bucketed(lengths, [32] * 30, bucket_batches=8, seed=1)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in plan)
    real = sum(lengths[i] for batch in plan for i in batch)
    assert real / padded > 0.85
