"""How many attempts there are of each kind.

planned + refilled = scored + failed + discarded + open, always; retries are counted beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CountRow:
    """Attempts that agree in everything counted. kind: "open", "scored", "failed" or "discarded"; label: its reason."""

    refill: bool
    kind: str
    label: str
    attempts: int
    retried: int


@dataclass(slots=True)
class Counts:
    """Numbers of attempts."""

    planned: int = 0
    refilled: int = 0
    scored: int = 0
    failed: int = 0
    discarded: int = 0
    open: int = 0
    retried: int = 0
    by_termination: dict[str, int] = field(default_factory=dict)
    by_failure: dict[str, int] = field(default_factory=dict)
    by_discard: dict[str, int] = field(default_factory=dict)


def count(rows: Iterable[CountRow]) -> Counts:
    """The sums."""
    counts = Counts()
    reasons = {"scored": counts.by_termination, "failed": counts.by_failure, "discarded": counts.by_discard}
    for row in rows:
        if row.refill:
            counts.refilled += row.attempts
        else:
            counts.planned += row.attempts
        setattr(counts, row.kind, getattr(counts, row.kind) + row.attempts)
        counts.retried += row.retried
        if row.kind in reasons:
            reasons[row.kind][row.label] = reasons[row.kind].get(row.label, 0) + row.attempts
    return counts
