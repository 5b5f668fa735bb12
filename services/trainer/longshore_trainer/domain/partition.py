"""How a batch is cut: attempts into minibatches, a minibatch over ranks, a rank's share into micro-batches."""

from collections.abc import Sequence

import numpy as np


def minibatches(attempts: int, size: int, rng: np.random.Generator) -> list[list[int]]:
    """A shuffled partition of attempt indices into parts of nearly equal size, at most `size` each."""
    if attempts == 0:
        return []
    parts = -(-attempts // size)
    return [part.tolist() for part in np.array_split(rng.permutation(attempts), parts)]


def micro_batches(lengths: Sequence[int], ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Indices as [rank][micro-batch][example]: every index once, every rank with the same number of micro-batches.

    Examples of similar length go together; a micro-batch pads to at most `max_tokens` (a single longer example stays
    alone). Ranks without work get empty micro-batches, so that collectives match.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in order:
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    cut = [_cut(share, lengths, max_tokens) for share in shares]
    most = max(1, *(len(parts) for parts in cut))
    return [parts + [[]] * (most - len(parts)) for parts in cut]


def _cut(share: list[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = []
    width = 0
    for index in share:
        if not parts or (len(parts[-1]) + 1) * width > max_tokens:
            parts.append([])
            width = lengths[index]
        parts[-1].append(index)
    return parts


def length_bucketed(
    lengths: Sequence[int], batch_sizes: Sequence[int], bucket_batches: int, seed: int
) -> list[list[int]]:
    """One batch of example indices per entry of `batch_sizes`, drawn without replacement from shuffled epochs.

    Within windows of `bucket_batches` batches examples are sorted by length, so that a batch pads little; the batches
    of a window are shuffled. A pure function of its arguments: a resumed job gets the same plan.
    """
    rng = np.random.default_rng(seed)
    stream: list[int] = []
    plan: list[list[int]] = []
    for start in range(0, len(batch_sizes), bucket_batches):
        sizes = list(batch_sizes[start : start + bucket_batches])
        while len(stream) < sum(sizes):
            stream.extend(rng.permutation(len(lengths)).tolist())
        window, stream = stream[: sum(sizes)], stream[sum(sizes) :]
        window.sort(key=lambda index: lengths[index])
        cuts = np.cumsum(sizes)[:-1]
        batches = [part.tolist() for part in np.split(np.array(window), cuts)]
        plan.extend(_shuffled_keeping_sizes(batches, rng))
    return plan


def _shuffled_keeping_sizes(batches: list[list[int]], rng: np.random.Generator) -> list[list[int]]:
    """Shuffles batches of equal size among their own places, so that step k keeps its phase's batch size."""
    result = list(batches)
    for size in sorted({len(batch) for batch in batches}):
        places = [place for place, batch in enumerate(batches) if len(batch) == size]
        for place, source in zip(places, rng.permutation(places).tolist(), strict=True):
            result[place] = batches[source]
    return result
