"""A service as data: its servers, what runs beside them, how it ends. Each service's `bootstrap.build` makes one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from longshore_common.errors import Unavailable
from longshore_common.grpc_server import make_server
from longshore_common.log import get_logger

log = get_logger(__name__)


@dataclass(frozen=True)
class GrpcEndpoint:
    """One gRPC port. secret None: the servicer authenticates its callers itself."""

    address: str
    service_names: tuple[str, ...]
    register: Callable[[grpc.aio.Server], None]
    secret: str | None


@dataclass(frozen=True)
class HttpEndpoint:
    """One HTTP port with an ASGI application."""

    address: str
    asgi_app: Any


@dataclass(frozen=True)
class App:
    """A service that can run alone or beside the others in one process."""

    name: str
    grpc: Sequence[GrpcEndpoint]
    http: Sequence[HttpEndpoint] = ()
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Run until cancelled; one that raises ends the whole app with its error."""
    on_start: Callable[[], Awaitable[None]] | None = None
    on_stop: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Running:
    """What `running` yields."""

    grpc_addresses: tuple[str, ...]
    """Bound host:port, in the order of App.grpc."""
    http_addresses: tuple[str, ...]
    failed: asyncio.Future[BaseException]
    """Set when a background task or an HTTP server died."""


async def _start_grpc(endpoint: GrpcEndpoint, name: str) -> tuple[grpc.aio.Server, str]:
    server = make_server(endpoint.secret, name)
    endpoint.register(server)
    checker = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for service in ("", *endpoint.service_names):
        await checker.set(service, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*endpoint.service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host = endpoint.address.rsplit(":", 1)[0]
    try:
        port = server.add_insecure_port(endpoint.address)
    except RuntimeError as error:
        raise _address_in_use(name, endpoint.address) from error
    if port == 0:
        raise _address_in_use(name, endpoint.address)
    await server.start()
    return server, f"{host}:{port}"


def _address_in_use(name: str, address: str) -> Unavailable:
    return Unavailable(
        f"{name} cannot listen on {address}: the port is in use or not allowed; "
        "stop what uses it or choose another port",
        details={"address": address},
        retryable=False,
    )


async def _start_http(endpoint: HttpEndpoint, name: str) -> tuple[Any, asyncio.Task[None], str]:
    import socket

    import uvicorn

    host, _, port = endpoint.address.rpartition(":")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
    except OSError as error:
        listener.close()
        raise _address_in_use(name, endpoint.address) from error
    config = uvicorn.Config(
        endpoint.asgi_app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        backlog=2048,
        # Longer than clients keep idle connections, so that it is never we who close one while a request is on its way.
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    # Signals belong to main: several of these run in one process.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has only a flag
        await asyncio.sleep(0.01)
    if task.done():
        await task
    return server, task, f"{host}:{listener.getsockname()[1]}"


async def _guard(app_name: str, coroutine: Coroutine[Any, Any, None], failed: asyncio.Future[BaseException]) -> None:
    try:
        await coroutine
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.error("background task failed", service=app_name, exc_info=True)
        if not failed.done():
            failed.set_result(error)


@contextlib.asynccontextmanager
async def running(app: App) -> AsyncIterator[Running]:
    """Starts the app's servers and background tasks; at the end of the block stops them and calls on_stop.

    Raises:
        Unavailable: a port is in use.
    """
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    async with contextlib.AsyncExitStack() as stack:
        if app.on_stop is not None:
            stack.push_async_callback(app.on_stop)
        if app.on_start is not None:
            await app.on_start()
        grpc_addresses = [await _enter_grpc(stack, endpoint, app.name) for endpoint in app.grpc]
        http_addresses = [await _enter_http(stack, endpoint, app.name, failed) for endpoint in app.http]
        tasks = [asyncio.create_task(_guard(app.name, make(), failed)) for make in app.background]
        stack.push_async_callback(_cancel, tasks)
        log.info("started", service=app.name, grpc=grpc_addresses, http=http_addresses)
        yield Running(tuple(grpc_addresses), tuple(http_addresses), failed)


async def _enter_grpc(stack: contextlib.AsyncExitStack, endpoint: GrpcEndpoint, name: str) -> str:
    server, address = await _start_grpc(endpoint, name)
    stack.push_async_callback(server.stop, 2.0)
    return address


async def _enter_http(
    stack: contextlib.AsyncExitStack, endpoint: HttpEndpoint, name: str, failed: asyncio.Future[BaseException]
) -> str:
    server, task, address = await _start_http(endpoint, name)

    async def stop() -> None:
        server.should_exit = True
        await asyncio.wait([task], timeout=8)
        task.cancel()

    stack.push_async_callback(stop)
    return address


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve_until_signal(app: App) -> None:
    """Runs the app until SIGTERM or SIGINT. Raises what a background task died of."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    async with running(app) as handle:
        waiter = asyncio.ensure_future(stop.wait())
        await asyncio.wait(list[asyncio.Future[Any]]((waiter, handle.failed)), return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if handle.failed.done():
            raise handle.failed.result()
