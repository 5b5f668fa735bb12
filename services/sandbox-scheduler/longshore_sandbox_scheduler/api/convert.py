"""Proto messages to domain records and back."""

from __future__ import annotations

from longshore.sandbox.v1 import sandbox_pb2
from longshore_sandbox_scheduler.domain.model import EndReason, Limits, Sandbox, SandboxState

_STATES = {
    SandboxState.STARTING: sandbox_pb2.SANDBOX_STATE_STARTING,
    SandboxState.READY: sandbox_pb2.SANDBOX_STATE_READY,
    SandboxState.ENDED: sandbox_pb2.SANDBOX_STATE_ENDED,
}
_REASONS: dict[EndReason, sandbox_pb2.EndReason.ValueType] = {
    EndReason.NONE: sandbox_pb2.END_REASON_UNSPECIFIED,
    **{
        reason: sandbox_pb2.EndReason.Value(f"END_REASON_{reason.name}")
        for reason in EndReason
        if reason is not EndReason.NONE
    },
}


def limits_from(message: sandbox_pb2.Limits) -> Limits:
    """Limits as asked for; 0 is "not said"."""
    return Limits(
        cpus=message.cpus,
        memory_mb=message.memory_mb,
        storage_mb=message.storage_mb,
        max_processes=message.max_processes,
        max_file_mb=message.max_file_mb,
    )


def sandbox_to(sandbox: Sandbox) -> sandbox_pb2.Sandbox:
    """The message of a record."""
    limits = sandbox.limits
    return sandbox_pb2.Sandbox(
        sandbox_id=sandbox.sandbox_id,
        state=_STATES[sandbox.state],
        end_reason=_REASONS[sandbox.end_reason],
        end_detail=sandbox.end_detail,
        task_digest=sandbox.task_digest,
        image_digest=sandbox.image_digest,
        run_id=sandbox.run_id,
        attempt_id=sandbox.attempt_id,
        created_at_ms=sandbox.created_at_ms,
        expires_at_ms=sandbox.expires_at_ms,
        limits=sandbox_pb2.Limits(
            cpus=limits.cpus,
            memory_mb=limits.memory_mb,
            storage_mb=limits.storage_mb,
            max_processes=limits.max_processes,
            max_file_mb=limits.max_file_mb,
        ),
        enforcement=sandbox_pb2.LimitEnforcement(by_limit=dict(sandbox.enforcement)),
        runtime=sandbox.runtime,
    )
