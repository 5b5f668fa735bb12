"""Between the controller's messages and the application."""

from __future__ import annotations

import json

from longshore.common.v1 import outcome_pb2 as common
from longshore.controller.v1 import controller_pb2 as pb
from longshore.sandbox.v1 import sandbox_pb2 as sandbox
from longshore.trajectory.v1 import trajectory_pb2 as trajectory
from longshore_common.digests import canonical_json
from longshore_common.errors import InvalidSpec
from longshore_controller.application.artifacts import ListedArtifact
from longshore_controller.application.leasing import GrantedLease
from longshore_controller.domain.artifacts import ArtifactHeader, ArtifactKind
from longshore_controller.domain.leases import LeaseRef
from longshore_controller.domain.records import AttemptCounts, EventRecord, RunRecord, StepRecord
from longshore_controller.domain.spec import SandboxSpec
from longshore_controller.domain.vocabulary import Purpose, RunState, StepPhase


def state_to_proto(state: RunState) -> pb.RunState.ValueType:
    """RUN_STATE_*."""
    return pb.RunState.Value(f"RUN_STATE_{state.value.upper()}")


def counts_to_proto(counts: AttemptCounts) -> trajectory.Counts:
    """The ledger of attempts."""
    return trajectory.Counts(**vars(counts))


def run_to_proto(run: RunRecord, counts: AttemptCounts | None = None) -> pb.Run:
    """A run; counts only where they were asked for."""
    return pb.Run(
        run_id=run.run_id,
        name=run.name,
        state=state_to_proto(run.state),
        state_reason=run.state_reason,
        plan_json=run.plan_json,
        plan_digest=run.plan_digest,
        step=run.step,
        total_steps=run.total_steps,
        policy_version=run.policy_version,
        incarnation=run.incarnation,
        created_at_ms=run.created_at_ms,
        updated_at_ms=run.updated_at_ms,
        finished_at_ms=run.finished_at_ms,
        counts=counts_to_proto(counts) if counts is not None else None,
        metrics=run.metrics,
    )


def event_to_proto(event: EventRecord) -> pb.Event:
    """An event."""
    return pb.Event(
        sequence=event.sequence,
        run_id=event.run_id,
        at_ms=event.at_ms,
        kind=event.kind.value,
        message=event.message,
        data_json=json.dumps(event.data, sort_keys=True),
    )


def failure_name(failure: common.Failure.ValueType) -> str:
    """sandbox_start, ..."""
    return common.Failure.Name(failure).removeprefix("FAILURE_").lower()


def ref_from_proto(ref: pb.LeaseRef) -> LeaseRef:
    """What a worker holds."""
    return LeaseRef(ref.attempt_id, ref.epoch)


def ref_to_proto(ref: LeaseRef) -> pb.LeaseRef:
    """What a worker holds."""
    return pb.LeaseRef(attempt_id=ref.attempt_id, epoch=ref.epoch)


def _limits(spec: SandboxSpec) -> sandbox.Limits:
    return sandbox.Limits(**spec.named())


def lease_to_proto(lease: GrantedLease) -> pb.Lease:
    """All a worker needs."""
    spec = lease.plan.spec
    return pb.Lease(
        attempt_id=lease.ref.attempt_id,
        epoch=lease.ref.epoch,
        run_id=lease.run_id,
        group_id=lease.group_id,
        index=lease.index,
        task_digest=lease.task.digest,
        instruction=lease.task.instruction,
        harness_name=spec.harness.name,
        harness_version=spec.harness.version,
        harness_config_json=canonical_json(spec.harness.config).decode(),
        policy_alias=lease.alias,
        pinned_version=lease.pinned_version,
        sampling=common.Sampling(
            temperature=lease.temperature, max_tokens=spec.rollout.max_tokens_per_turn, seed=lease.seed
        ),
        max_turns=spec.rollout.max_turns,
        max_tokens=spec.rollout.max_tokens,
        agent_timeout_s=lease.agent_timeout_s,
        ttl_s=lease.ttl_s,
        purpose=trajectory.PURPOSE_EVAL if lease.purpose is Purpose.EVAL else trajectory.PURPOSE_TRAIN,
        verifier_digest=lease.plan.verifier_digest,
        limits=_limits(spec.sandbox),
        regrade=spec.verifier.regrade,
    )


def step_from_proto(request: pb.ReportStepRequest, now_ms: int) -> StepRecord:
    """A reported step. Raises InvalidSpec: unknown phase."""
    try:
        phase = StepPhase(request.phase)
    except ValueError as error:
        known = ", ".join(item.value for item in StepPhase)
        raise InvalidSpec(f"ReportStep: unknown phase '{request.phase}'; known: {known}", field="phase") from error
    return StepRecord(
        run_id=request.run_id,
        phase=phase,
        step=request.step,
        incarnation=request.incarnation,
        metrics=dict(request.metrics),
        seconds=dict(request.seconds),
        total_steps=request.total_steps,
        at_ms=now_ms,
    )


def artifact_header(header: pb.ArtifactHeader) -> ArtifactHeader:
    """Raises InvalidSpec: no such kind, name or digest."""
    kind = pb.ArtifactKind.Name(header.kind).removeprefix("ARTIFACT_KIND_").lower()
    if kind not in set(ArtifactKind):
        raise InvalidSpec("PutArtifact: the kind must be file or tree", field="kind")
    return ArtifactHeader(header.name, ArtifactKind(kind), header.digest)


def artifact_to_proto(listed: ListedArtifact) -> pb.Artifact:
    """An artifact with its users."""
    one = listed.stored
    return pb.Artifact(
        name=one.name,
        kind=pb.ArtifactKind.Value(f"ARTIFACT_KIND_{one.kind.name}"),
        digest=one.digest,
        bytes=one.bytes,
        files=one.files,
        put_at_ms=one.put_at_ms,
        used_by=listed.used_by,
    )
