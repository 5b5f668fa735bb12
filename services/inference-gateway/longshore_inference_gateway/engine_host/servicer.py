"""gRPC service of an engine host."""

from __future__ import annotations

from typing import Any

from longshore.engine.v1 import engine_pb2 as pb
from longshore.engine.v1 import engine_pb2_grpc
from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_host.host import EngineHost, HostStatus, State

SERVICE = "longshore.engine.v1.EngineHostService"

_STATES: dict[State, pb.EngineState.ValueType] = {
    State.IDLE: pb.ENGINE_STATE_IDLE,
    State.VERIFYING: pb.ENGINE_STATE_VERIFYING,
    State.STARTING: pb.ENGINE_STATE_STARTING,
    State.READY: pb.ENGINE_STATE_READY,
    State.FAILED: pb.ENGINE_STATE_FAILED,
}


class EngineHostServicer(engine_pb2_grpc.EngineHostServiceServicer):
    """Maps the host to the wire. base_apart: see EngineStatus."""

    def __init__(self, host: EngineHost, limits: pb.EngineLimits, clock: Clock, *, base_apart: bool) -> None:
        self._host = host
        self._limits = limits
        self._clock = clock
        self._base_apart = base_apart

    async def Serve(self, request: pb.ServeRequest, context: Any) -> pb.ServeResponse:
        for field in ("base_name", "uri", "digest"):
            if not getattr(request, field):
                raise InvalidSpec(f"Serve needs {field}", field=field)
        status = self._host.serve(ServedBase(request.base_name, request.uri, request.digest))
        return pb.ServeResponse(status=self._status(status), limits=self._limits)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        return pb.StatusResponse(status=self._status(self._host.status), limits=self._limits)

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopResponse:
        return pb.StopResponse(status=self._status(await self._host.stop(request.base_name, request.instance)))

    def _status(self, status: HostStatus) -> pb.EngineStatus:
        answer = pb.EngineStatus(
            state=_STATES[status.state],
            base_name=status.base.name,
            uri=status.base.folder,
            digest=status.base.digest,
            instance=status.instance,
            http_port=status.port,
            pid=status.pid,
            context_length=status.context_length,
            base_apart=self._base_apart,
            seconds=self._clock.monotonic() - status.since,
        )
        if status.failure is not None:
            code, message = status.failure
            answer.failure.CopyFrom(pb.Failure(code=code.value, message=message))
        return answer
