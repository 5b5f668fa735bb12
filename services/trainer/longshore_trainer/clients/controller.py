"""The controller: step metrics and warm-start progress go there; it may answer that the run is to stop."""

from collections.abc import Mapping
from typing import Protocol

from longshore.controller.v1 import controller_pb2, controller_pb2_grpc
from longshore_common.errors import LongshoreError
from longshore_common.grpc_client import sync_channel
from longshore_common.log import get_logger
from longshore_trainer.clients.calls import PatientCaller

log = get_logger(__name__)


class ProgressReporter(Protocol):
    """Where progress goes."""

    def report(
        self, *, step: int, total_steps: int, phase: str, metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> bool:
        """True when the run is to stop. The same step may be reported again after a resume."""


class SilentReporter:
    """For a job without a controller: the log is enough."""

    def report(
        self, *, step: int, total_steps: int, phase: str, metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> bool:
        return False


class ControllerClient:
    """ProgressReporter over gRPC. Training steps must arrive; warm-start progress may get lost."""

    def __init__(self, address: str, secret: str, run_id: str, incarnation: int, caller: PatientCaller) -> None:
        self._stub = controller_pb2_grpc.ControllerServiceStub(sync_channel(address, secret))
        self._run_id, self._incarnation, self._caller = run_id, incarnation, caller

    def report(
        self, *, step: int, total_steps: int, phase: str, metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> bool:
        request = controller_pb2.ReportStepRequest(
            run_id=self._run_id,
            incarnation=self._incarnation,
            step=step,
            phase=phase,
            metrics=dict(metrics),
            seconds=dict(seconds),
            total_steps=total_steps,
        )
        if phase == "train":
            return bool(self._caller(self._stub.ReportStep, request, what="ReportStep", timeout_s=30).stop)
        try:
            return bool(PatientCaller(0.0)(self._stub.ReportStep, request, what="ReportStep", timeout_s=5).stop)
        except LongshoreError as error:
            if not error.retryable:
                raise
            log.warning("progress report was lost", error=error.message)
            return False
