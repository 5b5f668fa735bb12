"""gRPC servers with the same manners everywhere: shared secret, error mapping, metrics, big messages."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from prometheus_client import Counter, Histogram

from longshore_common import scope
from longshore_common.errors import Internal, LongshoreError, PermissionDenied
from longshore_common.grpc_status import to_status, to_trailers
from longshore_common.log import get_logger

log = get_logger(__name__)

_Metadata = Sequence[tuple[str, str | bytes]]

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)
_OPEN = ("/grpc.health.v1.Health/", "/grpc.reflection.")

STARTED = Counter("longshore_grpc_started", "gRPC calls that began", ["server", "method"])
CALLS = Counter("longshore_grpc_calls", "gRPC calls that ended", ["server", "method", "code"])
SECONDS = Histogram(
    "longshore_grpc_seconds", "Duration of unary gRPC calls, seconds", ["server", "method"],
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300),
)  # fmt: skip


async def _abort(context: Any, error: LongshoreError) -> NoReturn:
    await context.abort(to_status(error), error.message, to_trailers(error))
    raise AssertionError("abort returned")


class _Interceptor(grpc.aio.ServerInterceptor):
    """Authenticates, maps errors of the tree to statuses, counts."""

    def __init__(self, secret: str | None, service: str) -> None:
        self._expected = f"Bearer {secret}" if secret else None
        self._service = service

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        method = details.method
        if handler is None or method.startswith(_OPEN):
            return handler
        allowed = self._allowed(details)
        name = method.rsplit("/", 1)[-1]
        metadata = tuple(details.invocation_metadata or ())
        if not handler.response_streaming:
            wrapped = self._unary(handler.unary_unary or handler.stream_unary, name, allowed, metadata)
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
        else:
            wrapped = self._streaming(handler.unary_stream or handler.stream_stream, name, allowed, metadata)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    def _allowed(self, details: grpc.HandlerCallDetails) -> bool:
        if self._expected is None:
            return True
        given = next((value for key, value in details.invocation_metadata if key == "authorization"), "")
        return hmac.compare_digest(str(given).encode(), self._expected.encode())

    def _denied(self) -> PermissionDenied:
        return PermissionDenied(
            f"{self._service}: wrong or missing service secret; set LONGSHORE_SECRET to the one of the server"
        )

    def _unary(self, behavior: Any, name: str, allowed: bool, metadata: _Metadata) -> Any:
        async def call(request: Any, context: Any) -> Any:
            started = time.monotonic()
            STARTED.labels(self._service, name).inc()
            code = "ok"
            try:
                if not allowed:
                    raise self._denied()
                with scope.arrived(f"{self._service}.{name}", metadata, request):
                    return await behavior(request, context)
            except LongshoreError as error:
                code = error.code.value
                await _abort(context, error)
            except (grpc.aio.AbortError, grpc.RpcError):
                code = "aborted"
                raise
            except Exception as error:
                code = "internal"
                log.error("unhandled error", service=self._service, method=name, exc_info=True)
                await _abort(context, Internal(f"{self._service}.{name}: {type(error).__name__}: {error}"))
            finally:
                CALLS.labels(self._service, name, code).inc()
                SECONDS.labels(self._service, name).observe(time.monotonic() - started)

        return call

    def _streaming(self, behavior: Any, name: str, allowed: bool, metadata: _Metadata) -> Any:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            STARTED.labels(self._service, name).inc()
            code = "ok"
            try:
                if not allowed:
                    raise self._denied()
                # The ids stay for the whole task, which is this call's own: a generator may end in another context.
                scope.bind(**scope.ids(metadata, request))
                async for item in behavior(request, context):
                    yield item
            except LongshoreError as error:
                code = error.code.value
                await _abort(context, error)
            except (grpc.aio.AbortError, grpc.RpcError):
                code = "aborted"
                raise
            except Exception as error:
                code = "internal"
                log.error("unhandled error", service=self._service, method=name, exc_info=True)
                await _abort(context, Internal(f"{self._service}.{name}: {type(error).__name__}: {error}"))
            finally:
                CALLS.labels(self._service, name, code).inc()

        return call


def make_server(secret: str | None, service: str) -> grpc.aio.Server:
    """An asyncio gRPC server. secret None or empty: callers are not checked here."""
    return grpc.aio.server(interceptors=[_Interceptor(secret or None, service)], options=OPTIONS)
