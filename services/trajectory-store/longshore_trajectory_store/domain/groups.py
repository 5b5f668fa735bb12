"""A group: G attempts of one identity, complete when all are sealed, consumed at most once.

OPEN -> AVAILABLE -> TAKEN -> CONSUMED
  |         |          +----> AVAILABLE   (resume: taken but not in the manifest)
  |         +---------------> DISCARDED   (stale)
  +-> INSUFFICIENT | EVALUATED | DISCARDED
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from longshore_common.errors import Conflict, InvalidSpec
from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose, attempt_id_of
from longshore_trajectory_store.domain.outcomes import Discarded, DiscardReason, Scored


class GroupState(StrEnum):
    """Where a group stands."""

    OPEN = "open"
    AVAILABLE = "available"
    INSUFFICIENT = "insufficient"
    TAKEN = "taken"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    EVALUATED = "evaluated"


FROZEN = frozenset({GroupState.TAKEN, GroupState.CONSUMED})
"""Being or been trained on: its attempts do not change any more."""


@dataclass(frozen=True, slots=True)
class Group:
    """number: order of creation in the store. consumed_step 0: not consumed."""

    group_id: str
    run_id: str
    purpose: Purpose
    panel: str
    task_digest: str
    step: int
    size: int
    min_scored: int
    refill: bool
    created_at_ms: int
    seeds: tuple[int, ...]
    state: GroupState = GroupState.OPEN
    consumed_step: int = 0
    number: int = 0

    @property
    def attempt_ids(self) -> list[str]:
        """Ids of its attempts, in order of their index."""
        return [attempt_id_of(self.group_id, index) for index in range(self.size)]


_SPEC_FIELDS = ("run_id", "purpose", "panel", "task_digest", "step", "size", "min_scored", "refill", "seeds")


def check_spec(group: Group, attempt_ids: Sequence[str]) -> None:
    """Refuses a group that cannot be run.

    Raises:
        InvalidSpec: an empty id, a size below 1, another number of seeds, duplicate or foreign attempt ids.
    """
    for name in ("group_id", "run_id", "task_digest"):
        if not getattr(group, name):
            raise InvalidSpec(f"group.{name} is empty", field=f"group.{name}")
    if group.size < 1:
        raise InvalidSpec(f"group {group.group_id}: size {group.size}; at least 1", field="group.size")
    lowest = 1 if group.purpose is Purpose.TRAIN else 0
    if not lowest <= group.min_scored <= group.size:
        raise InvalidSpec(
            f"group {group.group_id}: min_scored {group.min_scored} is not within {lowest}..{group.size}",
            field="group.min_scored",
        )
    if len(group.seeds) != group.size:
        raise InvalidSpec(f"group {group.group_id}: {len(group.seeds)} seeds for {group.size} attempts", field="seeds")
    duplicate = next((a for i, a in enumerate(attempt_ids) if a in attempt_ids[:i]), None)
    if duplicate is not None:
        raise InvalidSpec(f"group {group.group_id}: duplicate attempt {duplicate}", field="group.attempt_ids")
    if attempt_ids and list(attempt_ids) != group.attempt_ids:
        raise InvalidSpec(
            f"group {group.group_id}: attempts are named {attempt_id_of(group.group_id, 0)}, ... by index; leave "
            "attempt_ids empty or name all of them so",
            field="group.attempt_ids",
        )


def check_same(existing: Group, given: Group) -> None:
    """Raises Conflict naming the first field that differs from the group that is stored under the id."""
    for name in _SPEC_FIELDS:
        was, now = getattr(existing, name), getattr(given, name)
        if was != now:
            raise Conflict(
                f"group {given.group_id} exists with {name} {was!r}, not {now!r}; use another id",
                details={"field": name},
            )


@dataclass(frozen=True, slots=True)
class Settlement:
    """The state a group has now, and attempts that it drags into `stale` with it."""

    state: GroupState
    also_stale: tuple[str, ...] = ()


def settle(group: Group, attempts: Sequence[Attempt]) -> Settlement:
    """What the group is, given all its attempts. Not for groups that are taken or consumed.

    Only trainable scored attempts count towards min_scored. A group that staleness leaves with too few is discarded.
    """
    if any(attempt.state is AttemptState.OPEN for attempt in attempts):
        return Settlement(GroupState.OPEN)
    discarded = [a.outcome.reason for a in attempts if isinstance(a.outcome, Discarded)]
    if len(discarded) == len(attempts):
        return Settlement(GroupState.DISCARDED)
    if group.purpose is Purpose.EVAL:
        return Settlement(GroupState.EVALUATED)
    if sum(attempt.trainable for attempt in attempts) >= group.min_scored:
        return Settlement(GroupState.AVAILABLE)
    if DiscardReason.STALE in discarded:
        rest = tuple(a.attempt_id for a in attempts if isinstance(a.outcome, Scored))
        return Settlement(GroupState.DISCARDED, rest)
    return Settlement(GroupState.INSUFFICIENT)
