"""The sandbox scheduler, as far as the controller needs it."""

from __future__ import annotations

from collections.abc import Mapping

import grpc.aio

from longshore.sandbox.v1 import sandbox_pb2 as pb
from longshore.sandbox.v1 import sandbox_pb2_grpc as rpc
from longshore_controller.domain.spec import SandboxSpec

_TIMEOUT_S = 30.0


class GrpcSandboxDemand:
    """`SandboxDemand`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.SandboxServiceStub(channel)

    async def announce(self, run_id: str, tasks: Mapping[str, int], sandbox: SandboxSpec | None) -> None:
        limits = pb.Limits(**sandbox.named()) if sandbox is not None else None
        demands = [pb.Demand(task_digest=task, count=count, limits=limits) for task, count in sorted(tasks.items())]
        await self._stub.SetDemand(pb.SetDemandRequest(run_id=run_id, demands=demands), timeout=_TIMEOUT_S)
