"""An attempt's life: open under growing lease epochs, sealed once, possibly discarded afterwards.

Callers are the store's transactions: they load, ask here, and write what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from longshore_common.digests import digest
from longshore_common.errors import Conflict, InvalidSpec, PermissionDenied
from longshore_trajectory_store.domain.identity import (
    AttemptIdentity,
    check_complete,
    check_sampling,
    first_difference,
    identity_digest,
    identity_values,
)
from longshore_trajectory_store.domain.outcomes import (
    Discarded,
    DiscardReason,
    Failed,
    Failure,
    Outcome,
    Reward,
    Scored,
    check_outcome,
)
from longshore_trajectory_store.domain.turns import TurnStatus, TurnSummary, trace_digest


class Purpose(StrEnum):
    """What an attempt is for. The two are counted apart."""

    TRAIN = "train"
    EVAL = "eval"


class AttemptState(StrEnum):
    """Open, or fixed by Seal or Discard."""

    OPEN = "open"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """epoch 0: not leased yet. sequence 0: not sealed yet. *_ms: since the Unix epoch. *_s: seconds."""

    attempt_id: str
    group_id: str
    run_id: str
    index: int
    purpose: Purpose
    panel: str
    task_digest: str
    seed: int
    created_at_ms: int
    state: AttemptState = AttemptState.OPEN
    epoch: int = 0
    outcome: Outcome | None = None
    reward: Reward | None = None
    identity: AttemptIdentity | None = None
    identity_digest: str = ""
    trace_digest: str = ""
    seal_digest: str = ""
    start_version: int = 0
    sealed_at_ms: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    agent_s: float = 0.0
    verifier_s: float = 0.0
    sandbox_id: str = ""
    sequence: int = 0
    trainable: bool = False
    untrainable_reason: str = ""


@dataclass(frozen=True, slots=True)
class SealRequest:
    """What a worker says at the end of an attempt. start_version: the policy version its session started on."""

    attempt_id: str
    lease_epoch: int
    outcome: Outcome | None
    reward: Reward | None = None
    identity: AttemptIdentity | None = None
    start_version: int = 0
    agent_s: float = 0.0
    verifier_s: float = 0.0
    sandbox_id: str = ""


def attempt_id_of(group_id: str, index: int) -> str:
    """`<group_id>-<index>`."""
    return f"{group_id}-{index}"


def seal_request_digest(request: SealRequest) -> str:
    """Digest of the request's content: the same Seal again is a no-op."""
    kind = type(request.outcome).__name__
    identity = None if request.identity is None else identity_values(request.identity)
    reward = None if request.reward is None else asdict(request.reward)
    outcome = None if request.outcome is None else asdict(request.outcome)
    measured = [request.start_version, request.agent_s, request.verifier_s, request.sandbox_id]
    return digest([request.lease_epoch, kind, outcome, reward, identity, *measured])


def check_epoch(attempt: Attempt, epoch: int, what: str) -> None:
    """Refuses a write of an older lease: its holder was replaced.

    Raises:
        InvalidSpec: epoch below 1.
        PermissionDenied: older than the newest epoch; the message names both.
    """
    if epoch < 1:
        raise InvalidSpec(f"{what} of attempt {attempt.attempt_id}: epochs start at 1, got {epoch}", field="epoch")
    if epoch < attempt.epoch:
        raise PermissionDenied(
            f"{what} of attempt {attempt.attempt_id} refused: lease epoch {epoch} is older than epoch {attempt.epoch}; "
            "the attempt was leased again: stop, write nothing",
            details={"epoch": str(epoch), "newest_epoch": str(attempt.epoch)},
        )


def check_open(attempt: Attempt, what: str) -> None:
    """Raises Conflict when the attempt is sealed or discarded."""
    if attempt.state is AttemptState.SEALED:
        raise Conflict(f"{what} of attempt {attempt.attempt_id} refused: it is already {describe(attempt.outcome)}")


def describe(outcome: Outcome | None) -> str:
    """An outcome in a few words."""
    match outcome:
        case Scored(reward, termination):
            return f"scored {reward} ({termination})"
        case Failed(failure):
            return f"failed ({failure})"
        case Discarded(reason):
            return f"discarded ({reason})"
    return "open"


def is_repeat(attempt: Attempt, request: SealRequest) -> bool:
    """Whether the attempt was sealed by the very same request.

    Raises:
        InvalidSpec, PermissionDenied: see check_epoch and check_outcome.
        Conflict: sealed with other content, or discarded.
    """
    check_outcome(request.outcome, request.reward)
    if request.identity is not None:
        check_sampling(request.identity.sampling)
    check_epoch(attempt, request.lease_epoch, "Seal")
    if attempt.state is AttemptState.OPEN:
        return False
    if attempt.seal_digest == seal_request_digest(request):
        return True
    check_open(attempt, "Seal")
    raise AssertionError("check_open raises for a sealed attempt")


def seal(
    attempt: Attempt, request: SealRequest, turns: Sequence[TurnSummary], siblings: Sequence[Attempt], now_ms: int
) -> Attempt:
    """The sealed attempt; its sequence is still to be given.

    A scored training attempt whose capture has holes seals as failed `capture_incomplete`. One with untrainable
    sampling, or in which no token was sampled, keeps its reward for the counts but is not trainable.

    Args:
        turns: the stored turns of the request's epoch.
        siblings: the sealed attempts of the same group.

    Raises:
        InvalidSpec: the identity has holes or names another task.
        Conflict: mixed identity or duplicate trace in the group; turns that contradict identity or start version.
    """
    outcome = request.outcome
    hole = capture_hole(turns)
    if isinstance(outcome, Scored):
        identity = request.identity or AttemptIdentity()
        check_complete(identity, attempt.task_digest)
        _check_against_turns(attempt, request, identity, turns)
        if attempt.purpose is Purpose.TRAIN and hole:
            outcome = Failed(Failure.CAPTURE_INCOMPLETE, hole)
    reason = _untrainable_reason(outcome, hole, turns)
    sealed = replace(
        attempt,
        state=AttemptState.SEALED,
        epoch=request.lease_epoch,
        outcome=outcome,
        reward=request.reward if isinstance(outcome, Scored) else None,
        identity=request.identity,
        identity_digest=identity_digest(request.identity) if request.identity else "",
        trace_digest=trace_digest(request.sandbox_id, turns),
        seal_digest=seal_request_digest(request),
        start_version=request.start_version,
        sealed_at_ms=now_ms,
        turns=len(turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        completion_tokens=sum(turn.completion_tokens for turn in turns),
        agent_s=request.agent_s,
        verifier_s=request.verifier_s,
        sandbox_id=request.sandbox_id,
        trainable=isinstance(outcome, Scored) and not reason,
        untrainable_reason=reason,
    )
    if isinstance(outcome, Scored):
        check_siblings(sealed, siblings)
    return sealed


def capture_hole(turns: Sequence[TurnSummary]) -> str:
    """Why the attempt's capture cannot be trusted, or empty: an incomplete turn, or a turn that was never stored."""
    present = {turn.turn for turn in turns}
    for turn in sorted(turns, key=lambda t: t.turn):
        if turn.status is TurnStatus.CAPTURE_INCOMPLETE:
            return f"turn {turn.turn}: {turn.untrainable_reason}"
    missing = sorted(set(range(max(present, default=-1) + 1)) - present)
    return f"turn {missing[0]} was never stored (the last is {max(present)})" if missing else ""


def _untrainable_reason(outcome: Outcome | None, hole: str, turns: Sequence[TurnSummary]) -> str:
    if not isinstance(outcome, Scored):
        return ""
    if hole:
        return f"capture incomplete: {hole}"
    sampled = [turn for turn in turns if turn.status is TurnStatus.OK and turn.completion_tokens]
    if not sampled:
        return "no sampled token was captured"
    for turn in sampled:
        if not turn.trainable:
            return f"turn {turn.turn}: {turn.untrainable_reason}"
    return ""


def _check_against_turns(
    attempt: Attempt, request: SealRequest, identity: AttemptIdentity, turns: Sequence[TurnSummary]
) -> None:
    for turn in turns:
        for name in ("template_digest", "tokenizer_digest", "base_digest"):
            captured, stated = getattr(turn, name), getattr(identity, name)
            if captured and captured != stated:
                raise Conflict(
                    f"attempt {attempt.attempt_id}: identity.{name} is {stated}, turn {turn.turn} was captured with "
                    f"{captured}",
                    details={"field": name},
                )
        if turn.min_version is not None and turn.min_version < request.start_version:
            raise Conflict(
                f"attempt {attempt.attempt_id}: start_version is {request.start_version}, but turn {turn.turn} was "
                f"sampled by version {turn.min_version}; state the version that the session started on",
                details={"field": "start_version"},
            )


def check_siblings(sealed: Attempt, siblings: Sequence[Attempt]) -> None:
    """A group is one identity, and no run counts twice. Failed and discarded siblings do not bind it.

    Raises:
        Conflict: the first field that differs, or the attempt with the same trace.
    """
    for other in siblings:
        if not isinstance(other.outcome, Scored) or other.identity is None or sealed.identity is None:
            continue
        difference = first_difference(other.identity, sealed.identity)
        if difference is not None:
            name, expected, actual = difference
            raise Conflict(
                f"mixed identity in group {sealed.group_id}: {name} is {actual!r} in attempt {sealed.attempt_id}, "
                f"{expected!r} in {other.attempt_id}",
                details={"field": name},
            )
        if sealed.trace_digest and other.trace_digest == sealed.trace_digest:
            raise Conflict(
                f"duplicate trace in group {sealed.group_id}: attempts {other.attempt_id} and {sealed.attempt_id} hold "
                "the same captured calls from the same sandbox",
                details={"field": "trace_digest"},
            )


def discardable(attempt: Attempt, reason: DiscardReason, untrained: bool) -> bool:
    """Whether Discard changes it: for any reason while it is open; only as stale once it is scored and untrained."""
    if attempt.state is AttemptState.OPEN:
        return True
    return reason is DiscardReason.STALE and isinstance(attempt.outcome, Scored) and untrained


def discard(attempt: Attempt, reason: DiscardReason, now_ms: int) -> Attempt:
    """The discarded attempt. Its reward's provenance and its turns are kept for people."""
    sealed_at_ms = attempt.sealed_at_ms or now_ms
    outcome = Discarded(reason)
    return replace(
        attempt, state=AttemptState.SEALED, outcome=outcome, trainable=False, reward=None, sealed_at_ms=sealed_at_ms
    )
