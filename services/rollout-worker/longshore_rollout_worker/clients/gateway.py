"""Sessions of the inference gateway."""

import grpc.aio

from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from longshore_rollout_worker.clients.outcome import sampling_proto
from longshore_rollout_worker.domain.ports import Lease, Session, SessionUse


class GrpcGateway:
    """Implements domain.ports.Gateway."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = gateway_pb2_grpc.GatewayServiceStub(channel)

    async def open(self, lease: Lease, ttl_s: float) -> Session:
        request = gateway_pb2.OpenSessionRequest(
            run_id=lease.run_id,
            attempt_id=lease.key.attempt_id,
            lease_epoch=lease.key.epoch,
            alias=lease.policy_alias,
            sampling=sampling_proto(lease.sampling, with_seed=True),
            max_session_tokens=lease.max_tokens,
            ttl_s=ttl_s,
        )
        if lease.pinned_version is not None:
            request.pinned_version = lease.pinned_version
        answer = await self._stub.OpenSession(request)
        model = answer.model_identity
        return Session(
            session_id=answer.session_id,
            token=answer.token,
            base_url=answer.base_url.rstrip("/"),
            model=answer.model,
            start_version=answer.start_version,
            base_digest=model.base_digest,
            tokenizer_digest=model.tokenizer_digest,
            template_digest=model.template_digest,
        )

    async def close(self, session_id: str) -> SessionUse:
        answer = await self._stub.CloseSession(gateway_pb2.CloseSessionRequest(session_id=session_id))
        return SessionUse(answer.turns, answer.capture_complete)
