"""Rewards from the verifier."""

import grpc.aio

from longshore.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from longshore_rollout_worker.clients.outcome import failure_from
from longshore_rollout_worker.domain.ports import ClaimedSandbox, Graded, Lease, NotGraded


class GrpcVerifier:
    """Implements domain.ports.Verifier. timeout_s covers tests, re-grade and oracle together."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._timeout_s = timeout_s

    async def verify(self, lease: Lease, sandbox: ClaimedSandbox, regrade: bool) -> Graded | NotGraded:
        request = verifier_pb2.VerifyRequest(
            task_digest=lease.task_digest,
            sandbox_id=sandbox.sandbox_id,
            agent_address=sandbox.agent_address,
            agent_token=sandbox.agent_token,
            run_id=lease.run_id,
            attempt_id=lease.key.attempt_id,
            regrade=regrade,
        )
        answer = await self._stub.Verify(request, timeout=self._timeout_s)
        if answer.HasField("reward"):
            return Graded(answer.reward.reward, answer.reward, answer.agent_broke_verifier, answer.seconds)
        return NotGraded(failure_from(answer.failed), answer.failed.evidence, answer.seconds)
