"""Between generated messages and the domain."""

from __future__ import annotations

import json

from longshore.catalog.v1 import catalog_pb2 as catalog
from longshore.common.v1 import outcome_pb2 as common
from longshore.gateway.v1 import gateway_pb2 as gateway
from longshore.trajectory.v1 import trajectory_pb2 as trajectory
from longshore_common.errors import InvalidSpec
from longshore_controller.domain.evaluation import AttemptResult
from longshore_controller.domain.plan import CatalogDataset, CatalogTask
from longshore_controller.domain.planner import GroupPlan
from longshore_controller.domain.records import AttemptCounts, GroupInfo, PolicyInfo, SealedAttempt
from longshore_controller.domain.vocabulary import GroupState, OutcomeKind, Purpose, TaskState

_PURPOSE = {Purpose.TRAIN: trajectory.PURPOSE_TRAIN, Purpose.EVAL: trajectory.PURPOSE_EVAL}


def purpose_to_proto(purpose: Purpose) -> trajectory.Purpose.ValueType:
    """TRAIN or EVAL."""
    return _PURPOSE[purpose]


def purpose_from_proto(purpose: trajectory.Purpose.ValueType) -> Purpose:
    """TRAIN or EVAL."""
    return Purpose.EVAL if purpose == trajectory.PURPOSE_EVAL else Purpose.TRAIN


def group_state(state: trajectory.GroupState.ValueType) -> GroupState:
    """From GROUP_STATE_*; unspecified counts as open."""
    name = trajectory.GroupState.Name(state).removeprefix("GROUP_STATE_").lower()
    return GroupState.OPEN if name == "unspecified" else GroupState(name)


def failure_name(failure: common.Failure.ValueType) -> str:
    """sandbox_start, ..."""
    return common.Failure.Name(failure).removeprefix("FAILURE_").lower()


def failure_to_proto(name: str) -> common.Failure.ValueType:
    """From sandbox_start, .... Raises InvalidSpec."""
    try:
        return common.Failure.Value(f"FAILURE_{name.upper()}")
    except ValueError as error:
        raise InvalidSpec(f"unknown failure '{name}'", field="retry.failure") from error


def termination_name(termination: common.Termination.ValueType) -> str:
    """agent_done, ..."""
    return common.Termination.Name(termination).removeprefix("TERMINATION_").lower()


def task_from_proto(task: catalog.Task) -> CatalogTask:
    """A task of the catalog; metadata that is no object counts as none."""
    metadata = json.loads(task.metadata_json) if task.metadata_json else {}
    skill = metadata.get("skill", "") if isinstance(metadata, dict) else ""
    return CatalogTask(
        digest=task.digest,
        name=task.name,
        instruction=task.instruction,
        state=TaskState(catalog.TaskState.Name(task.state).removeprefix("TASK_STATE_").lower()),
        state_reason=task.state_reason,
        skill=str(skill),
        agent_timeout_s=task.limits.agent_timeout_s,
    )


def dataset_from_proto(dataset: catalog.Dataset) -> CatalogDataset:
    """A frozen dataset."""
    splits = {split.name: tuple(split.task_digests) for split in dataset.splits}
    return CatalogDataset(name=dataset.name, digest=dataset.digest, splits=splits)


def group_to_proto(plan: GroupPlan) -> trajectory.CreateGroupRequest:
    """The request that creates the group."""
    group = trajectory.Group(
        group_id=plan.group_id,
        run_id=plan.run_id,
        purpose=purpose_to_proto(plan.purpose),
        panel=plan.panel,
        task_digest=plan.task_digest,
        step=plan.step,
        size=plan.size,
        min_scored=plan.min_scored,
        refill=plan.refill > 0,
        attempt_ids=plan.attempt_ids(),
    )
    return trajectory.CreateGroupRequest(group=group, seeds=plan.seeds)


def group_from_proto(group: trajectory.Group) -> GroupInfo:
    """A group's state."""
    return GroupInfo(group.group_id, group_state(group.state), group.step, group.consumed_step)


def sealed_from_proto(message: trajectory.WatchSealedResponse) -> SealedAttempt:
    """A sealed attempt with its group's state."""
    attempt = message.attempt
    return SealedAttempt(
        sequence=attempt.sequence,
        attempt_id=attempt.attempt_id,
        group_id=attempt.group_id,
        group_state=group_state(message.group.state),
        purpose=purpose_from_proto(attempt.purpose),
        panel=attempt.panel,
        outcome=outcome_kind(attempt.outcome),
        turns=attempt.turns,
        prompt_tokens=attempt.prompt_tokens,
        completion_tokens=attempt.completion_tokens,
        agent_s=attempt.agent_s,
        verifier_s=attempt.verifier_s,
        sealed_at_ms=attempt.sealed_at_ms,
    )


def outcome_kind(outcome: common.Outcome) -> OutcomeKind:
    """Scored, failed or discarded."""
    return OutcomeKind(outcome.WhichOneof("kind") or OutcomeKind.DISCARDED)


def result_from_proto(attempt: trajectory.Attempt) -> AttemptResult:
    """A sealed evaluation attempt."""
    scored = outcome_kind(attempt.outcome) is OutcomeKind.SCORED
    ending = (
        termination_name(attempt.outcome.scored.termination) if scored else failure_name(attempt.outcome.failed.failure)
    )
    return AttemptResult(
        task_digest=attempt.task_digest,
        index=attempt.index,
        reward=attempt.outcome.scored.reward if scored else None,
        ending=ending,
        turns=attempt.turns,
        prompt_tokens=attempt.prompt_tokens,
        completion_tokens=attempt.completion_tokens,
        agent_s=attempt.agent_s,
        verifier_s=attempt.verifier_s,
    )


def counts_from_proto(counts: trajectory.Counts) -> AttemptCounts:
    """The ledger of attempts."""
    return AttemptCounts(
        planned=counts.planned,
        refilled=counts.refilled,
        scored=counts.scored,
        failed=counts.failed,
        discarded=counts.discarded,
        open=counts.open,
        retried=counts.retried,
        by_termination=dict(counts.by_termination),
        by_failure=dict(counts.by_failure),
        by_discard=dict(counts.by_discard),
    )


def policy_from_proto(policy: gateway.Policy) -> PolicyInfo:
    """A policy version."""
    return PolicyInfo(
        version=policy.version,
        kind=gateway.PolicyKind.Name(policy.kind).removeprefix("POLICY_KIND_").lower(),
        state=gateway.PolicyState.Name(policy.state).removeprefix("POLICY_STATE_").lower(),
        uri=policy.uri,
        digest=policy.digest,
        served_name=policy.served_name,
        published_at_ms=policy.published_at_ms,
        current=policy.current,
    )


def policy_kind(kind: str) -> gateway.PolicyKind.ValueType:
    """From lora, full."""
    return gateway.PolicyKind.Value(f"POLICY_KIND_{kind.upper()}")
