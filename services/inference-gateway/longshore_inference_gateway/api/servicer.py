"""GatewayService: proto to domain and back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc.aio

from longshore.gateway.v1 import gateway_pb2 as pb
from longshore.gateway.v1 import gateway_pb2_grpc
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.api import mapping
from longshore_inference_gateway.domain.policies import Policies, PublishRequest
from longshore_inference_gateway.domain.sessions import OpenRequest, Sessions
from longshore_inference_gateway.metrics import PUBLISH_SECONDS

SERVICE = "longshore.gateway.v1.GatewayService"
T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """The gRPC side of the gateway."""

    def __init__(self, sessions: Sessions, policies: Policies, *, base_url: str, default_ttl_s: float) -> None:
        self._sessions = sessions
        self._policies = policies
        self._base_url = base_url
        self._default_ttl_s = default_ttl_s

    async def OpenSession(self, request: pb.OpenSessionRequest, context: _Context) -> pb.OpenSessionResponse:
        """See the proto."""
        wanted = OpenRequest(
            run_id=request.run_id,
            attempt_id=request.attempt_id,
            lease_epoch=request.lease_epoch,
            alias=request.alias,
            pinned_version=request.pinned_version if request.HasField("pinned_version") else None,
            sampling=mapping.sampling(request.sampling),
            max_session_tokens=request.max_session_tokens,
            ttl_s=request.ttl_s or self._default_ttl_s,
        )
        session, token = await self._sessions.open(wanted, self._policies)
        engines = session.alias.engines
        return pb.OpenSessionResponse(
            session_id=session.record.session_id,
            token=token,
            base_url=self._base_url,
            model=session.record.alias,
            start_version=session.record.version,
            model_identity=mapping.identity_to_proto(session.identity),
            context_length=engines.context_length if engines is not None else 0,
        )

    async def CloseSession(self, request: pb.CloseSessionRequest, context: _Context) -> pb.CloseSessionResponse:
        """See the proto."""
        totals = await self._sessions.close(request.session_id)
        return pb.CloseSessionResponse(
            turns=totals.turns,
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            queued_s=totals.queued_s,
            capture_complete=totals.capture_complete,
        )

    async def PublishPolicy(self, request: pb.PublishPolicyRequest, context: _Context) -> pb.PublishPolicyResponse:
        """See the proto. Goes on to its end when the caller gives up: asking again then finds it done."""
        wanted = PublishRequest(
            run_id=request.run_id,
            alias=_required(request.alias, "alias"),
            version=request.version,
            incarnation=request.incarnation,
            kind=mapping.kind(request.kind),
            uri=request.uri,
            digest=request.digest,
        )
        published = await _to_the_end(self._policies.publish(wanted))
        policy = published.policy
        PUBLISH_SECONDS.labels(policy.kind.value).observe(published.seconds)
        current = self._policies.alias(policy.alias).record.current_version
        return pb.PublishPolicyResponse(
            policy=mapping.policy_to_proto(policy, current),
            engines_confirmed=published.engines,
            seconds=published.seconds,
        )

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: _Context) -> pb.GetPolicyResponse:
        """See the proto."""
        version = request.version if request.HasField("version") else None
        policy, current = self._policies.find(request.alias, version)
        return pb.GetPolicyResponse(policy=mapping.policy_to_proto(policy, current))

    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: _Context) -> pb.ListPoliciesResponse:
        """See the proto. Without an alias: all."""
        names = [request.alias] if request.alias else sorted(self._policies.aliases)
        found = []
        for name in names:
            alias = self._policies.alias(name)
            for _, policy in sorted(alias.versions.items()):
                found.append(mapping.policy_to_proto(policy, alias.record.current_version))
        return pb.ListPoliciesResponse(policies=found)

    async def ListEngines(self, request: pb.ListEnginesRequest, context: _Context) -> pb.ListEnginesResponse:
        """See the proto."""
        return pb.ListEnginesResponse(engines=[mapping.engine_to_proto(*item) for item in self._policies.engines()])

    async def RetireAlias(self, request: pb.RetireAliasRequest, context: _Context) -> pb.RetireAliasResponse:
        """See the proto."""
        await self._sessions.close_alias(request.alias)
        await _to_the_end(self._policies.retire(request.alias))
        return pb.RetireAliasResponse()


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    # A caller's deadline cancels its handler; half a publish is what must not happen.
    return await asyncio.shield(asyncio.create_task(work))


def _required(value: str, field: str) -> str:
    if not value:
        raise InvalidSpec(f"{field} is empty", field=field)
    return value
