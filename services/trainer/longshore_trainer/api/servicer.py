"""TrainerService: status and drain of the job, from the gRPC server's threads."""

from typing import Any

from longshore.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from longshore_trainer.training.status import JobStatus


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Answers from the shared JobStatus."""

    def __init__(self, status: JobStatus) -> None:
        self._status = status

    def Status(self, request: trainer_pb2.StatusRequest, context: Any) -> trainer_pb2.StatusResponse:
        status = self._status
        return trainer_pb2.StatusResponse(
            run_id=status.run_id, incarnation=status.incarnation, step=status.step, phase=status.phase
        )

    def Drain(self, request: trainer_pb2.DrainRequest, context: Any) -> trainer_pb2.DrainResponse:
        self._status.drain()
        return trainer_pb2.DrainResponse()
