"""The ledger: which groups a step may take, what a batch holds, and what a resume makes of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from longshore_common.errors import Conflict, InvalidSpec
from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose
from longshore_trajectory_store.domain.groups import Group, GroupState
from longshore_trajectory_store.domain.outcomes import Discarded, Scored, Termination
from longshore_trajectory_store.domain.segments import Segment, build_segments
from longshore_trajectory_store.domain.staleness import staleness, usable
from longshore_trajectory_store.domain.turns import Turn


class BatchState(StrEnum):
    """A batch is taken, then either committed or, by a resume, released."""

    TAKEN = "taken"
    COMMITTED = "committed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the ledger. incarnation 0: no trainer came yet. committed_step: last step that is in a manifest."""

    run_id: str
    incarnation: int = 0
    closed: bool = False
    committed_step: int = 0
    resume_digest: str = ""
    resume_step: int = 0
    groups_released: int = 0
    attempts_stale: int = 0


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """step: about to be trained, from 1. groups: how many are wanted."""

    run_id: str
    incarnation: int
    step: int
    max_staleness: int
    groups: int


@dataclass(frozen=True, slots=True)
class TrainAttempt:
    """reward None: out of the baseline and out of the loss, and without segments."""

    attempt_id: str
    reward: float | None
    termination: Termination | None
    start_version: int
    staleness: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """The attempts of one group that were not discarded."""

    group_id: str
    task_digest: str
    attempts: tuple[TrainAttempt, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one training step reads."""

    batch_id: str
    step: int
    groups: tuple[TrainGroup, ...]


@dataclass(frozen=True, slots=True)
class TakeResult:
    """batch None and not closed: pending, `groups_available` are there."""

    batch: Batch | None
    groups_available: int
    closed: bool


def check_take(request: TakeRequest) -> None:
    """Raises InvalidSpec naming the number that makes no sense."""
    for name, lowest in (("step", 1), ("groups", 1), ("max_staleness", 0), ("incarnation", 1)):
        value = getattr(request, name)
        if value < lowest:
            raise InvalidSpec(f"TakeBatch of run {request.run_id}: {name} is {value}; at least {lowest}", field=name)


def check_incarnation(run: Run, incarnation: int, what: str) -> None:
    """Only the incarnation that resumed last may touch the ledger; the first one needs no resume.

    Raises:
        Conflict: older (another trainer took over), or newer without a ResumeRun.
    """
    if incarnation < run.incarnation:
        raise Conflict(
            f"{what} of run {run.run_id} refused: incarnation {incarnation} is older than {run.incarnation}; another "
            "trainer took over: stop",
            details={"incarnation": str(incarnation), "newest_incarnation": str(run.incarnation)},
        )
    if run.incarnation and incarnation > run.incarnation:
        raise Conflict(
            f"{what} of run {run.run_id} refused: incarnation {incarnation} has not taken over from {run.incarnation}; "
            "call ResumeRun first"
        )


def check_step(run: Run, step: int) -> None:
    """Raises Conflict when the step is in a manifest already: its groups must not be trained on again."""
    if step <= run.committed_step:
        raise Conflict(
            f"TakeBatch of run {run.run_id} refused: step {step} is trained and committed; the next is "
            f"{run.committed_step + 1}"
        )


def stale_attempts(request: TakeRequest, attempts: Iterable[Attempt]) -> list[str]:
    """Trainable attempts that may not be trained on at this step. The lag rule judges each attempt, not the group."""
    return [
        attempt.attempt_id
        for attempt in attempts
        if attempt.trainable and not usable(request.step, attempt.start_version, request.max_staleness)
    ]


def make_batch(
    batch_id: str,
    step: int,
    groups: Sequence[Group],
    attempts: Mapping[str, Sequence[Attempt]],
    turns: Mapping[str, Sequence[Turn]],
) -> Batch:
    """The batch of the given groups, in their order.

    Args:
        attempts: by group id. Discarded ones are left out.
        turns: by attempt id, of the sealed epoch. Read for trainable attempts only.
    """
    made = []
    for group in groups:
        members = [a for a in attempts[group.group_id] if not isinstance(a.outcome, Discarded)]
        ordered = sorted(members, key=lambda a: a.index)
        train = tuple(_train_attempt(a, step, turns.get(a.attempt_id, ())) for a in ordered)
        made.append(TrainGroup(group.group_id, group.task_digest, train))
    return Batch(batch_id, step, tuple(made))


def _train_attempt(attempt: Attempt, step: int, turns: Sequence[Turn]) -> TrainAttempt:
    outcome = attempt.outcome
    scored = outcome if isinstance(outcome, Scored) and attempt.trainable else None
    return TrainAttempt(
        attempt_id=attempt.attempt_id,
        reward=scored.reward if scored else None,
        termination=outcome.termination if isinstance(outcome, Scored) else None,
        start_version=attempt.start_version,
        staleness=staleness(step, attempt.start_version),
        segments=tuple(build_segments(turns)) if scored else (),
    )


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume changes, by id. Attempts are judged after the groups moved."""

    consume: tuple[str, ...]
    release: tuple[str, ...]
    stale: tuple[str, ...]


def plan_resume(
    step: int,
    ledger: Collection[str],
    groups: Sequence[Group],
    attempts: Iterable[Attempt],
    open_versions: Mapping[str, int],
) -> ResumePlan:
    """The manifest wins: its groups are consumed, others that were taken are free again, newer versions are stale.

    A group that is consumed but not in the ledger stays consumed: at most once comes before none lost.

    Args:
        step: last step of the manifest, which produced version `step`.
        ledger: group ids that the manifest consumed.
        groups, attempts: the run's training groups and their attempts.
        open_versions: newest version that sampled a token, by id of an open attempt.
    """
    consume = tuple(g.group_id for g in groups if g.group_id in ledger and g.state is not GroupState.CONSUMED)
    release = tuple(g.group_id for g in groups if g.group_id not in ledger and g.state is GroupState.TAKEN)
    fixed = {g.group_id for g in groups if g.group_id in ledger or g.state is GroupState.CONSUMED}
    stale = []
    for attempt in attempts:
        if attempt.group_id in fixed or attempt.purpose is not Purpose.TRAIN:
            continue
        if attempt.state is AttemptState.OPEN:
            version = open_versions.get(attempt.attempt_id, 0)
        else:
            version = attempt.start_version if isinstance(attempt.outcome, Scored) else 0
        if version > step:
            stale.append(attempt.attempt_id)
    return ResumePlan(consume, release, tuple(stale))
