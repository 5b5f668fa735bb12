"""longshore.rollout.v1 over gRPC."""

from typing import Any

from longshore.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from longshore_rollout_worker.domain.worker import Worker


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """What the worker does, and how to let it end."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Status(self, request: rollout_pb2.StatusRequest, context: Any) -> rollout_pb2.StatusResponse:
        status = self._worker.status()
        return rollout_pb2.StatusResponse(
            worker_id=status.worker_id,
            running=status.running,
            capacity=status.capacity,
            draining=status.draining,
            completed=status.completed,
            attempt_ids=status.attempt_ids,
        )

    async def Drain(self, request: rollout_pb2.DrainRequest, context: Any) -> rollout_pb2.DrainResponse:
        return rollout_pb2.DrainResponse(still_running=await self._worker.drain(request.timeout_s))
