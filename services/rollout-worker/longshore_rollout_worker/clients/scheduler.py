"""Sandboxes from the scheduler."""

from typing import Any

import grpc.aio

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import Unavailable
from longshore_common.retry import when_there_is_room
from longshore_rollout_worker.domain.ports import ClaimedSandbox, Lease, SandboxEnd


class GrpcScheduler:
    """Implements domain.ports.Scheduler."""

    def __init__(self, channel: grpc.aio.Channel, agents: AgentChannels, claim_timeout_s: float) -> None:
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._agents, self._claim_timeout_s = agents, claim_timeout_s

    async def claim(self, lease: Lease, ttl_s: float) -> ClaimedSandbox:
        """Raises LongshoreError; details["end_reason"] says how a sandbox ended that never became ready."""
        request = sandbox_pb2.ClaimSandboxRequest(
            task_digest=lease.task_digest,
            run_id=lease.run_id,
            attempt_id=lease.key.attempt_id,
            limits=_lowered(lease),
            ttl_s=ttl_s,
            idempotency_key=f"{lease.key.attempt_id}-{lease.key.epoch}",
        )
        answer = await when_there_is_room(
            lambda left_s: self._stub.ClaimSandbox(request, timeout=left_s), within_s=self._claim_timeout_s
        )
        granted = answer.sandbox
        if granted.state == sandbox_pb2.SANDBOX_STATE_ENDED:
            reason = _reason(granted.end_reason)
            message = f"sandbox {granted.sandbox_id} ended at its start: {reason} {granted.end_detail}"
            raise Unavailable(message, details={"end_reason": reason}, retryable=False)
        await self._agents.trim()
        return ClaimedSandbox(
            sandbox_id=granted.sandbox_id,
            image_digest=granted.image_digest,
            limits=_limits(granted.limits),
            agent=self._agents.client(answer.agent_address, answer.agent_token),
            agent_address=answer.agent_address,
            agent_token=answer.agent_token,
        )

    async def renew(self, sandbox_id: str, ttl_s: float) -> None:
        await self._stub.RenewSandbox(sandbox_pb2.RenewSandboxRequest(sandbox_id=sandbox_id, ttl_s=ttl_s))

    async def look_up(self, sandbox_id: str) -> SandboxEnd:
        found = (await self._stub.GetSandbox(sandbox_pb2.GetSandboxRequest(sandbox_id=sandbox_id))).sandbox
        reason = _reason(found.end_reason) if found.state == sandbox_pb2.SANDBOX_STATE_ENDED else ""
        return SandboxEnd(reason, found.end_detail)

    async def delete(self, sandbox_id: str) -> None:
        await self._stub.DeleteSandbox(sandbox_pb2.DeleteSandboxRequest(sandbox_id=sandbox_id))


def _lowered(lease: Lease) -> sandbox_pb2.Limits | None:
    wanted: dict[str, Any] = dict(lease.sandbox_limits)
    return sandbox_pb2.Limits(**wanted) if wanted else None


def _limits(limits: sandbox_pb2.Limits) -> dict[str, float | int]:
    return {
        "cpus": limits.cpus,
        "memory_mb": limits.memory_mb,
        "storage_mb": limits.storage_mb,
        "max_processes": limits.max_processes,
        "max_file_mb": limits.max_file_mb,
    }


def _reason(value: "sandbox_pb2.EndReason.ValueType") -> str:
    name = sandbox_pb2.EndReason.Name(value).removeprefix("END_REASON_").lower()
    return "lost" if name == "unspecified" else name
