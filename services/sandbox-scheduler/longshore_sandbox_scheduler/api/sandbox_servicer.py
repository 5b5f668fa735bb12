"""longshore.sandbox.v1.SandboxService."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_sandbox_scheduler.api.convert import demand_from, limits_from, network_from, pool_to, sandbox_to
from longshore_sandbox_scheduler.domain.model import Claim
from longshore_sandbox_scheduler.domain.scheduler import Scheduler

_ANSWER_S = 1.0
"""Left of the caller's deadline for the answer itself, so that it is a typed refusal and not a cut connection."""


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Maps calls to the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def PrepareImage(self, request: sandbox_pb2.PrepareImageRequest, context: Any) -> Any:
        prepared = await self._scheduler.prepare(request.task_digest)
        return sandbox_pb2.PrepareImageResponse(
            image_digest=prepared.image.digest, built=prepared.built, seconds=prepared.seconds
        )

    async def ClaimSandbox(self, request: sandbox_pb2.ClaimSandboxRequest, context: Any) -> Any:
        claim = Claim(
            task_digest=request.task_digest,
            limits=limits_from(request.limits),
            run_id=request.run_id,
            attempt_id=request.attempt_id,
            ttl_s=request.ttl_s,
            idempotency_key=request.idempotency_key,
            network=network_from(request.network),
            priority=request.priority,
        )
        left = context.time_remaining()
        grant = await self._scheduler.claim(claim, None if left is None else max(left - _ANSWER_S, left / 2))
        return sandbox_pb2.ClaimSandboxResponse(
            sandbox=sandbox_to(grant.sandbox), agent_address=grant.agent_address, agent_token=grant.agent_token
        )

    async def RenewSandbox(self, request: sandbox_pb2.RenewSandboxRequest, context: Any) -> Any:
        expires_at_ms = await self._scheduler.renew(request.sandbox_id, request.ttl_s)
        return sandbox_pb2.RenewSandboxResponse(expires_at_ms=expires_at_ms)

    async def DeleteSandbox(self, request: sandbox_pb2.DeleteSandboxRequest, context: Any) -> Any:
        await self._scheduler.delete(request.sandbox_id)
        return sandbox_pb2.DeleteSandboxResponse()

    async def ListSandboxes(self, request: sandbox_pb2.ListSandboxesRequest, context: Any) -> Any:
        found = await self._scheduler.list(request.run_id, request.include_ended)
        return sandbox_pb2.ListSandboxesResponse(sandboxes=[sandbox_to(sandbox) for sandbox in found])

    async def GetSandbox(self, request: sandbox_pb2.GetSandboxRequest, context: Any) -> Any:
        return sandbox_pb2.GetSandboxResponse(sandbox=sandbox_to(await self._scheduler.get(request.sandbox_id)))

    async def WatchSandboxes(
        self, request: sandbox_pb2.WatchSandboxesRequest, context: Any
    ) -> AsyncIterator[sandbox_pb2.WatchSandboxesResponse]:
        async for sandbox in self._scheduler.watch(request.run_id):
            yield sandbox_pb2.WatchSandboxesResponse(sandbox=sandbox_to(sandbox))

    async def GrantAccess(self, request: sandbox_pb2.GrantAccessRequest, context: Any) -> Any:
        grant = await self._scheduler.grant_access(request.sandbox_id)
        return sandbox_pb2.GrantAccessResponse(
            sandbox=sandbox_to(grant.sandbox), agent_address=grant.agent_address, agent_token=grant.agent_token
        )

    async def SetDemand(self, request: sandbox_pb2.SetDemandRequest, context: Any) -> Any:
        await self._scheduler.set_demand(request.run_id, [demand_from(one) for one in request.demands])
        return sandbox_pb2.SetDemandResponse()

    async def ListPools(self, request: sandbox_pb2.ListPoolsRequest, context: Any) -> Any:
        return sandbox_pb2.ListPoolsResponse(pools=[pool_to(pool) for pool in self._scheduler.pools()])

    async def SweepSandboxes(self, request: sandbox_pb2.SweepSandboxesRequest, context: Any) -> Any:
        removed = await self._scheduler.sweep_orphans(request.dry_run)
        return sandbox_pb2.SweepSandboxesResponse(
            removed=[sandbox_pb2.Removed(kind=one.kind, name=one.name, why=one.why) for one in removed]
        )
