"""Protos to domain objects and back. Enum values carry a prefix in protos and the contracts' names in the domain."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from longshore.common.v1 import outcome_pb2 as common
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore_common.errors import InvalidSpec
from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose, SealRequest
from longshore_trajectory_store.domain.batches import Batch, TrainAttempt
from longshore_trajectory_store.domain.counts import Counts
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.identity import AttemptIdentity, Sampling
from longshore_trajectory_store.domain.outcomes import (
    Discarded,
    DiscardReason,
    Failed,
    Failure,
    Outcome,
    Reward,
    Scored,
    TamperResistance,
    Termination,
)
from longshore_trajectory_store.domain.segments import Segment
from longshore_trajectory_store.domain.turns import Turn, TurnStatus, VersionSpan

E = TypeVar("E", bound=StrEnum)

_IDENTITY = (
    "task_digest", "harness_name", "harness_version", "harness_config_digest", "base_digest", "tokenizer_digest",
    "template_digest", "policy_alias", "image_digest", "limits_digest", "verifier_digest",
)  # fmt: skip
_REWARD = (
    "reward", "file_name", "file_digest", "tests_digest", "image_digest", "exit_status", "output_head", "output_tail",
    "output_truncated", "ctrf_json", "duration_s", "regraded",
)  # fmt: skip
_TURN = (
    "attempt_id", "lease_epoch", "turn", "parent_turn", "finish_reason", "template_digest", "tokenizer_digest",
    "base_digest", "engine", "dialect", "served_name", "request_zst", "response_zst", "tools_zst", "received_at_ms",
    "first_token_at_ms", "done_at_ms", "trainable", "untrainable_reason",
)  # fmt: skip
_GROUP = (
    "group_id", "run_id", "panel", "task_digest", "step", "size", "min_scored", "refill", "created_at_ms",
    "consumed_step",
)  # fmt: skip
_ATTEMPT = (
    "attempt_id", "group_id", "run_id", "index", "epoch", "identity_digest", "start_version", "created_at_ms",
    "sealed_at_ms", "turns", "prompt_tokens", "completion_tokens", "agent_s", "verifier_s", "task_digest", "panel",
    "seed", "sequence", "trace_digest", "sandbox_id", "trainable", "untrainable_reason",
)  # fmt: skip


def _value_names(wrapper: Any, kind: type[E], prefix: str) -> tuple[dict[int, E], dict[E, Any]]:
    """The same map both ways; the generated types of enum values differ from each other, hence Any."""
    by_number: dict[int, E] = {wrapper.Value(f"{prefix}_{member.name}"): member for member in kind}
    return by_number, {member: number for number, member in by_number.items()}


_PURPOSE, _PURPOSE_PB = _value_names(pb.Purpose, Purpose, "PURPOSE")
_ATTEMPT_STATE, _ATTEMPT_STATE_PB = _value_names(pb.AttemptState, AttemptState, "ATTEMPT_STATE")
_TURN_STATUS, _TURN_STATUS_PB = _value_names(pb.TurnStatus, TurnStatus, "TURN_STATUS")
_TERMINATION, _TERMINATION_PB = _value_names(common.Termination, Termination, "TERMINATION")
_FAILURE, _FAILURE_PB = _value_names(common.Failure, Failure, "FAILURE")
_DISCARD, _DISCARD_PB = _value_names(common.DiscardReason, DiscardReason, "DISCARD_REASON")
_TAMPER, _TAMPER_PB = _value_names(common.TamperResistance, TamperResistance, "TAMPER_RESISTANCE")


def _known(values: dict[int, E], number: int, field: str) -> E:
    if number not in values:
        raise InvalidSpec(f"{field} is {number or 'missing'}; one of {', '.join(values.values())}", field=field)
    return values[number]


def purpose(number: int) -> Purpose:
    """Raises InvalidSpec when it is unspecified."""
    return _known(_PURPOSE, number, "purpose")


def any_purpose(number: int) -> Purpose | None:
    """None: both."""
    return _PURPOSE.get(number)


def any_state(number: int) -> AttemptState | None:
    """None: both."""
    return _ATTEMPT_STATE.get(number)


def discard_reason(number: int) -> DiscardReason:
    """Raises InvalidSpec when it is unspecified."""
    return _known(_DISCARD, number, "reason")


def group_from_proto(request: pb.CreateGroupRequest, now_ms: int) -> Group:
    """A new group; state and consumed step of the proto are not the caller's to say."""
    values = {name: getattr(request.group, name) for name in _GROUP if name != "consumed_step"}
    values["created_at_ms"] = request.group.created_at_ms or now_ms
    return Group(**values, purpose=purpose(request.group.purpose), seeds=tuple(request.seeds))


def group_to_proto(group: Group) -> pb.Group:
    """A group with its attempts' ids."""
    return pb.Group(
        **{name: getattr(group, name) for name in _GROUP},
        purpose=_PURPOSE_PB[group.purpose],
        state=pb.GroupState.Value(f"GROUP_STATE_{group.state.name}"),
        attempt_ids=group.attempt_ids,
    )


def sampling_from_proto(message: common.Sampling) -> Sampling:
    """top_p 0 means 1.0; top_k below 1 means off."""
    seed = message.seed if message.HasField("seed") else None
    return Sampling(message.temperature, message.top_p or 1.0, max(message.top_k, 0), message.max_tokens, seed)


def sampling_to_proto(sampling: Sampling) -> common.Sampling:
    """The proto of it."""
    return common.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
    )


def turn_from_proto(message: pb.Turn) -> Turn:
    """A turn as the gateway captured it."""
    return Turn(
        **{name: getattr(message, name) for name in _TURN},
        prompt_ids=np.frombuffer(array("i", message.prompt_ids), dtype=np.int32),
        completion_ids=np.frombuffer(array("i", message.completion_ids), dtype=np.int32),
        logprobs=np.frombuffer(array("f", message.logprobs), dtype=np.float32),
        versions=tuple(VersionSpan(span.first_token, span.version) for span in message.versions),
        status=_known(_TURN_STATUS, message.status, "turn.status"),
        sampling=sampling_from_proto(message.sampling),
    )


def turn_to_proto(turn: Turn) -> pb.Turn:
    """The proto of it."""
    return pb.Turn(
        **{name: getattr(turn, name) for name in _TURN},
        prompt_ids=turn.prompt_ids.tolist(),
        completion_ids=turn.completion_ids.tolist(),
        logprobs=turn.logprobs.tolist(),
        versions=[pb.VersionSpan(first_token=s.first_token, version=s.version) for s in turn.versions],
        status=_TURN_STATUS_PB[turn.status],
        sampling=sampling_to_proto(turn.sampling),
    )


def outcome_from_proto(message: common.Outcome) -> Outcome | None:
    """None when no kind is set."""
    match message.WhichOneof("kind"):
        case "scored":
            termination = _known(_TERMINATION, message.scored.termination, "outcome.scored.termination")
            return Scored(message.scored.reward, termination)
        case "failed":
            failure = _known(_FAILURE, message.failed.failure, "outcome.failed.failure")
            return Failed(failure, message.failed.evidence)
        case "discarded":
            return Discarded(_known(_DISCARD, message.discarded.reason, "outcome.discarded.reason"))
    return None


def outcome_to_proto(outcome: Outcome | None) -> common.Outcome | None:
    """None while the attempt is open."""
    match outcome:
        case Scored(reward, termination):
            return common.Outcome(scored=common.Scored(reward=reward, termination=_TERMINATION_PB[termination]))
        case Failed(failure, evidence):
            return common.Outcome(failed=common.Failed(failure=_FAILURE_PB[failure], evidence=evidence))
        case Discarded(reason):
            return common.Outcome(discarded=common.Discarded(reason=_DISCARD_PB[reason]))
    return None


def reward_from_proto(message: common.Reward) -> Reward:
    """A reward's provenance."""
    values = {name: getattr(message, name) for name in _REWARD}
    resistance = _TAMPER.get(message.tamper_resistance)
    return Reward(**values, keys=dict(message.keys), tamper_resistance=resistance)


def reward_to_proto(reward: Reward) -> common.Reward:
    """The proto of it."""
    message = common.Reward(**{name: getattr(reward, name) for name in _REWARD}, keys=dict(reward.keys))
    if reward.tamper_resistance is not None:
        message.tamper_resistance = _TAMPER_PB[reward.tamper_resistance]
    return message


def seal_from_proto(request: pb.SealRequest) -> SealRequest:
    """A set but empty reward or identity counts as absent: generated code makes one when a field is only touched."""
    reward, identity = request.reward, request.identity
    return SealRequest(
        attempt_id=request.attempt_id,
        lease_epoch=request.lease_epoch,
        outcome=outcome_from_proto(request.outcome),
        reward=reward_from_proto(reward) if reward.ByteSize() else None,
        identity=identity_from_proto(identity) if identity.ByteSize() else None,
        start_version=request.start_version,
        agent_s=request.agent_s,
        verifier_s=request.verifier_s,
        sandbox_id=request.sandbox_id,
    )


def identity_from_proto(message: pb.AttemptIdentity) -> AttemptIdentity:
    """An identity."""
    return AttemptIdentity(
        **{name: getattr(message, name) for name in _IDENTITY}, sampling=sampling_from_proto(message.sampling)
    )


def attempt_to_proto(attempt: Attempt) -> pb.Attempt:
    """An attempt without its turns."""
    identity = attempt.identity
    return pb.Attempt(
        **{name: getattr(attempt, name) for name in _ATTEMPT},
        state=_ATTEMPT_STATE_PB[attempt.state],
        purpose=_PURPOSE_PB[attempt.purpose],
        outcome=outcome_to_proto(attempt.outcome),
        reward=None if attempt.reward is None else reward_to_proto(attempt.reward),
        identity=None
        if identity is None
        else pb.AttemptIdentity(
            **{name: getattr(identity, name) for name in _IDENTITY}, sampling=sampling_to_proto(identity.sampling)
        ),
    )


def batch_to_proto(batch: Batch) -> pb.Batch:
    """Packs all arrays: for big batches run it in a thread."""
    groups = [
        pb.TrainGroup(
            group_id=group.group_id,
            task_digest=group.task_digest,
            attempts=[_train_attempt_to_proto(attempt) for attempt in group.attempts],
        )
        for group in batch.groups
    ]
    return pb.Batch(batch_id=batch.batch_id, step=batch.step, groups=groups)


def _train_attempt_to_proto(attempt: TrainAttempt) -> pb.TrainAttempt:
    message = pb.TrainAttempt(
        attempt_id=attempt.attempt_id,
        reward=attempt.reward,
        start_version=attempt.start_version,
        staleness=attempt.staleness,
        segments=[_segment_to_proto(segment) for segment in attempt.segments],
    )
    if attempt.termination is not None:
        message.termination = _TERMINATION_PB[attempt.termination]
    return message


def _segment_to_proto(segment: Segment) -> pb.Segment:
    return pb.Segment(
        token_ids=segment.token_ids.astype("<i4").tobytes(),
        loss_mask=segment.loss_mask.tobytes(),
        logprobs=segment.logprobs.astype("<f4").tobytes(),
        versions=segment.versions.astype("<i4").tobytes(),
        length=segment.token_ids.size,
        turns=segment.turns,
    )


def counts_to_proto(counts: Counts) -> pb.Counts:
    """The proto of it."""
    return pb.Counts(
        planned=counts.planned,
        refilled=counts.refilled,
        scored=counts.scored,
        failed=counts.failed,
        discarded=counts.discarded,
        open=counts.open,
        retried=counts.retried,
        by_termination=counts.by_termination,
        by_failure=counts.by_failure,
        by_discard=counts.by_discard,
    )
