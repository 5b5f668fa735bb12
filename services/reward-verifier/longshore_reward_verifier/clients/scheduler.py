"""Fresh sandboxes from the scheduler, and what became of others."""

import grpc.aio

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import Unavailable
from longshore_common.ids import new_id
from longshore_common.retry import when_there_is_room
from longshore_reward_verifier.domain.ports import Sandbox, SandboxEnd


class SchedulerSandboxes:
    """Implements domain.ports.Sandboxes."""

    def __init__(self, channel: grpc.aio.Channel, agents: AgentChannels, claim_timeout_s: float) -> None:
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._agents, self._claim_timeout_s = agents, claim_timeout_s

    async def look_up(self, sandbox_id: str) -> SandboxEnd:
        answer = await self._stub.GetSandbox(sandbox_pb2.GetSandboxRequest(sandbox_id=sandbox_id))
        found = answer.sandbox
        reason = _reason(found.end_reason) if found.state == sandbox_pb2.SANDBOX_STATE_ENDED else ""
        return SandboxEnd(found.image_digest, reason, found.end_detail)

    async def claim(self, task_digest: str, run_id: str, attempt_id: str, ttl_s: float) -> Sandbox:
        request = sandbox_pb2.ClaimSandboxRequest(
            task_digest=task_digest,
            run_id=run_id,
            attempt_id=attempt_id,
            ttl_s=ttl_s,
            idempotency_key=new_id("regrade"),
        )
        answer = await when_there_is_room(
            lambda left_s: self._stub.ClaimSandbox(request, timeout=left_s), within_s=self._claim_timeout_s
        )
        granted = answer.sandbox
        if granted.state == sandbox_pb2.SANDBOX_STATE_ENDED:
            raise Unavailable(
                f"sandbox {granted.sandbox_id} ended at its start: {_reason(granted.end_reason)} {granted.end_detail}"
            )
        agent = self._agents.client(answer.agent_address, answer.agent_token)
        return Sandbox(granted.sandbox_id, granted.image_digest, agent)

    async def delete(self, sandbox_id: str) -> None:
        await self._stub.DeleteSandbox(sandbox_pb2.DeleteSandboxRequest(sandbox_id=sandbox_id))


def _reason(value: "sandbox_pb2.EndReason.ValueType") -> str:
    name = sandbox_pb2.EndReason.Name(value).removeprefix("END_REASON_").lower()
    return "lost" if name == "unspecified" else name
