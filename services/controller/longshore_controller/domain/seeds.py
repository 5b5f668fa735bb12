"""Seeds and orders derived from a run's seed by hashing, the same on every machine and after every restart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

SEED_BITS = 31


def derive_seed(seed: int, *parts: object) -> int:
    """A seed in [0, 2**31) for (seed, parts)."""
    text = "/".join([str(seed), *(str(part) for part in parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> (32 - SEED_BITS)


def epoch_order(tasks: Sequence[str], seed: int, epoch: int) -> list[str]:
    """The tasks in the shuffled order of one epoch; independent of the order they are given in."""
    order = sorted(tasks)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    return order


def task_at(tasks: Sequence[str], seed: int, ordinal: int) -> str:
    """The task of slot `ordinal` (from 0): every task once in each epoch of len(tasks) slots."""
    epoch, position = divmod(ordinal, len(tasks))
    return epoch_order(tasks, seed, epoch)[position]
