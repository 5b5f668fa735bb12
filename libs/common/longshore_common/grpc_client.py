"""gRPC channels that raise the error tree, with a default deadline and the service secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from longshore_common import scope
from longshore_common.grpc_server import OPTIONS
from longshore_common.grpc_status import from_rpc_error

T = TypeVar("T")

# Only calls that certainly did not reach the server are sent again here; all our RPCs are idempotent besides.
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def _options() -> list[tuple[str, Any]]:
    return [
        *OPTIONS,
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Loopback must not go through an HTTP proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        # Channels of one process must not share a connection: each carries its own server's life.
        ("grpc.use_local_subchannel_pool", 1),
    ]


class _Details(grpc.aio.ClientCallDetails):
    pass


def _with(details: Any, secret: str, timeout_s: float | None) -> Any:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    if secret and not any(key == "authorization" for key, _ in metadata):
        metadata.add("authorization", f"Bearer {secret}")
    for key, value in scope.outgoing():
        metadata.add(key, value)
    timeout = details.timeout if details.timeout is not None else timeout_s
    return _Details(details.method, timeout, metadata, details.credentials, details.wait_for_ready)


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, secret: str, timeout_s: float) -> None:
        self._secret, self._timeout_s = secret, timeout_s

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        call = await continuation(_with(client_call_details, self._secret, self._timeout_s), request)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, secret: str, timeout_s: float) -> None:
        self._secret, self._timeout_s = secret, timeout_s

    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_with(client_call_details, self._secret, self._timeout_s), request_iterator)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with(client_call_details, self._secret, None), request)


def open_channel(address: str, secret: str = "", *, timeout_s: float = 30.0) -> grpc.aio.Channel:
    """A channel to host:port. Connects lazily.

    Unary calls have a deadline of timeout_s seconds unless they bring their own `timeout`, and raise LongshoreError.
    Server streams have no default deadline; read them through `mapped_stream`. Client streams: await through `mapped`.
    """
    interceptors = [_Unary(secret, timeout_s), _UnaryStream(secret), _StreamUnary(secret, timeout_s)]
    return grpc.aio.insecure_channel(address, options=_options(), interceptors=interceptors)


async def mapped_stream(call: Any) -> AsyncIterator[Any]:
    """The messages of a server stream; errors are raised as LongshoreError."""
    try:
        async for item in call:
            yield item
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def mapped(call: Any) -> Any:
    """The answer of a client-streaming call; errors are raised as LongshoreError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


class _SyncAuth(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, secret: str, timeout_s: float) -> None:
        self._secret, self._timeout_s = secret, timeout_s

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        ours = [("authorization", f"Bearer {self._secret}"), *scope.outgoing()]
        metadata = [*(client_call_details.metadata or ()), *ours]
        timeout = client_call_details.timeout if client_call_details.timeout is not None else self._timeout_s
        details = client_call_details._replace(metadata=metadata, timeout=timeout)
        return continuation(details, request)


def sync_channel(address: str, secret: str = "", *, timeout_s: float = 30.0) -> grpc.Channel:
    """A blocking channel, for the trainer. Use `call_sync` to get the error tree."""
    channel = grpc.insecure_channel(address, options=_options())
    return grpc.intercept_channel(channel, _SyncAuth(secret, timeout_s))


def call_sync(method: Callable[..., T], request: Any, **keywords: Any) -> T:
    """method(request), with errors raised as LongshoreError."""
    try:
        return method(request, **keywords)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


async def wait_ready(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    """Whether the channel got connected within timeout_s."""
    try:
        async with asyncio.timeout(timeout_s):
            await channel.channel_ready()
    except TimeoutError:
        return False
    return True
