"""The trainer's small blocking gRPC server: TrainerService and health, on rank 0, beside the training loop."""

import hmac
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from longshore.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from longshore_common.errors import Unavailable
from longshore_common.log import get_logger
from longshore_trainer.api.servicer import TrainerServicer
from longshore_trainer.training.status import JobStatus

log = get_logger(__name__)

SERVICE = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name


class _SecretCheck(grpc.ServerInterceptor):
    def __init__(self, secret: str) -> None:
        self._expected = f"Bearer {secret}".encode()

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        open_to_all = handler_call_details.method.startswith("/grpc.health.v1.Health/")
        if open_to_all or hmac.compare_digest(str(given).encode(), self._expected):
            return continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_deny)


def _deny(request: Any, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "wrong or missing service secret; set LONGSHORE_SECRET")


@contextmanager
def serving(status: JobStatus, address: str, secret: str) -> Iterator[str]:
    """Serves while the block runs; yields the bound host:port. Raises Unavailable when the port is in use."""
    interceptors: list[grpc.ServerInterceptor] = [_SecretCheck(secret)] if secret else []
    server = grpc.server(
        ThreadPoolExecutor(max_workers=2), interceptors=interceptors, options=[("grpc.so_reuseport", 0)]
    )
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(TrainerServicer(status), server)
    health_servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for name in ("", SERVICE):
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error}; free it or set LONGSHORE_TRAINER_GRPC_ADDRESS"
        ) from error
    server.start()
    bound = f"{address.rsplit(':', 1)[0]}:{port}"
    log.info("trainer listens", address=bound)
    try:
        yield bound
    finally:
        server.stop(grace=1).wait()
