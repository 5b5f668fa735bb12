"""The gateway: a version is published there once its manifest is durable."""

from pathlib import Path
from typing import Protocol

from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from longshore_common.grpc_client import sync_channel
from longshore_trainer.clients.calls import PatientCaller


class PolicyPublisher(Protocol):
    """Where versions go."""

    def publish(self, version: int, folder: Path, digest: str, *, adapter: bool) -> None:
        """Returns once every engine serves it; publishing the same again is a no-op."""


class GatewayClient:
    """PolicyPublisher over gRPC. Raises Conflict when a newer incarnation has taken over."""

    def __init__(
        self,
        address: str,
        secret: str,
        run_id: str,
        alias: str,
        incarnation: int,
        caller: PatientCaller,
        timeout_s: float,
    ) -> None:
        self._stub = gateway_pb2_grpc.GatewayServiceStub(sync_channel(address, secret))
        self._run_id, self._alias, self._incarnation = run_id, alias, incarnation
        self._caller, self._timeout_s = caller, timeout_s

    def publish(self, version: int, folder: Path, digest: str, *, adapter: bool) -> None:
        request = gateway_pb2.PublishPolicyRequest(
            run_id=self._run_id,
            alias=self._alias,
            version=version,
            incarnation=self._incarnation,
            kind=gateway_pb2.POLICY_KIND_LORA if adapter else gateway_pb2.POLICY_KIND_FULL,
            uri=str(folder),
            digest=digest,
        )
        what = f"PublishPolicy of {self._alias} version {version}"
        self._caller(self._stub.PublishPolicy, request, what=what, timeout_s=self._timeout_s)
