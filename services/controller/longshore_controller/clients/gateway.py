"""The inference gateway over gRPC."""

from __future__ import annotations

import grpc.aio

from longshore.gateway.v1 import gateway_pb2 as pb
from longshore.gateway.v1 import gateway_pb2_grpc as rpc
from longshore_common.errors import NotFound
from longshore_controller.clients.convert import policy_from_proto, policy_kind
from longshore_controller.domain.records import PolicyInfo


class GrpcGateway:
    """`Gateway`. publish_timeout_s bounds a publish, which may start an engine."""

    def __init__(self, channel: grpc.aio.Channel, publish_timeout_s: float) -> None:
        self._stub = rpc.GatewayServiceStub(channel)
        self._publish_timeout_s = publish_timeout_s

    async def publish_base(self, run_id: str, alias: str, incarnation: int, uri: str, digest: str) -> None:
        request = pb.PublishPolicyRequest(
            run_id=run_id,
            alias=alias,
            version=0,
            incarnation=incarnation,
            kind=pb.POLICY_KIND_FULL,
            uri=uri,
            digest=digest,
        )
        await self._stub.PublishPolicy(request, timeout=self._publish_timeout_s)

    async def republish(self, run_id: str, alias: str, policy: PolicyInfo, incarnation: int) -> None:
        request = pb.PublishPolicyRequest(
            run_id=run_id,
            alias=alias,
            version=policy.version,
            incarnation=incarnation,
            kind=policy_kind(policy.kind),
            uri=policy.uri,
            digest=policy.digest,
        )
        await self._stub.PublishPolicy(request, timeout=self._publish_timeout_s)

    async def policy(self, alias: str, version: int) -> PolicyInfo | None:
        try:
            answer = await self._stub.GetPolicy(pb.GetPolicyRequest(alias=alias, version=version))
        except NotFound:
            return None
        return policy_from_proto(answer.policy)

    async def policies(self, alias: str) -> list[PolicyInfo]:
        try:
            answer = await self._stub.ListPolicies(pb.ListPoliciesRequest(alias=alias))
        except NotFound:
            return []
        return [policy_from_proto(policy) for policy in answer.policies]

    async def retire(self, alias: str) -> None:
        await self._stub.RetireAlias(pb.RetireAliasRequest(alias=alias), timeout=self._publish_timeout_s)
