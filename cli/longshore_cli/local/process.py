"""All services in this process: start them, announce them, stop them, leave nothing behind.

Used by `up` and `demo`, by commands that need a service for a moment, and by tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from longshore_cli.local.home import Endpoints, Home
from longshore_cli.local.settings import (
    Layout,
    Service,
    build_settings,
    by_name,
    check_ports,
    free_layout,
)
from longshore_common.app import running

Overrides = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Local:
    """Services that run now. `failed` gives (service, error) when one died."""

    home: Home
    endpoints: Endpoints
    secret: str
    failed: asyncio.Future[tuple[str, BaseException]]


@contextlib.asynccontextmanager
async def local_services(
    home: Home,
    layout: Layout,
    names: Iterable[str] | None = None,
    *,
    log_level: str = "info",
    overrides: Overrides | None = None,
) -> AsyncIterator[Local]:
    """Runs the services on this home for the length of the block; announces them in its endpoints.json.

    `overrides`: settings by service name.

    Raises:
        CliError: a port or the home is in use, or a service's settings are wrong.
        LongshoreError: a service cannot start.
    """
    services = by_name(names)
    check_ports(layout, services)
    with home.locked():
        secret = home.secret()
        async with _started(home, layout, services, secret, log_level, overrides or {}) as local:
            with home.announced(local.endpoints):
                yield local


@contextlib.asynccontextmanager
async def snapshot_services(home: Home, names: Iterable[str]) -> AsyncIterator[Local]:
    """Runs services on a copy of the home's databases: for reading; nothing in the home changes."""
    services = by_name(names)
    with tempfile.TemporaryDirectory(prefix="longshore-") as folder:
        copy = Home(Path(folder))
        await asyncio.to_thread(_copy_databases, home, copy, services)
        async with _started(copy, free_layout(), services, copy.secret(), "error", {}) as local:
            yield local


def _copy_databases(home: Home, copy: Home, services: Iterable[Service]) -> None:
    """Databases are copied (SQLite writes even when it only reads); big folders are linked."""
    for service in services:
        source, target = home.service_dir(service.name), copy.service_dir(service.name)
        target.mkdir(parents=True)
        for entry in source.iterdir() if source.is_dir() else ():
            if entry.is_file():
                shutil.copy2(entry, target / entry.name)
            elif entry.is_dir():
                (target / entry.name).symlink_to(entry)


@contextlib.asynccontextmanager
async def _started(
    home: Home, layout: Layout, services: Iterable[Service], secret: str, log_level: str, overrides: Overrides
) -> AsyncIterator[Local]:
    failed: asyncio.Future[tuple[str, BaseException]] = asyncio.get_running_loop().create_future()
    grpc: dict[str, str] = {}
    http: dict[str, str] = {}
    services = tuple(services)
    # Importing takes seconds; done first and beside the loop, no service that is up is held up by the next one's.
    await asyncio.to_thread(_import_all, services)
    async with contextlib.AsyncExitStack() as stack:
        for service in services:
            settings = build_settings(service, home, layout, secret, log_level, overrides.get(service.name))
            app = await import_module(f"{service.package}.bootstrap").build(settings)
            handle = await stack.enter_async_context(running(app))
            grpc[service.name] = handle.grpc_addresses[0]
            if handle.http_addresses:
                http[service.name] = handle.http_addresses[0]
            handle.failed.add_done_callback(_forward(service.name, failed))
        yield Local(home, Endpoints(os.getpid(), grpc, http), secret, failed)


def _import_all(services: Iterable[Service]) -> None:
    for service in services:
        with contextlib.suppress(ModuleNotFoundError):  # build_settings says what is missing
            import_module(f"{service.package}.bootstrap")


def _forward(name: str, failed: asyncio.Future[tuple[str, BaseException]]) -> Callable[[Any], None]:
    def forward(done: asyncio.Future[BaseException]) -> None:
        if not done.cancelled() and not failed.done():
            failed.set_result((name, done.result()))

    return forward


@contextlib.contextmanager
def logs_to(home: Home, level: str, also_stderr: bool = False) -> Iterator[TextIO]:
    """Sends the services' logs to HOME/logs/services.log, or to stderr."""
    from longshore_common import log, tracing

    tracing.configure("longshore")
    if also_stderr:
        log.configure(level)
        yield sys.stderr
        return
    home.logs.mkdir(parents=True, exist_ok=True)
    with (home.logs / "services.log").open("a", buffering=1, encoding="utf-8") as file:
        log.configure(level, stream=file)
        yield file
    log.configure("error")


@contextlib.contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM or SIGHUP sets; a second signal ends the process at once.

    Children die with us (`longshore_common.child`), so also the hard end leaves nothing running.
    """
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if event.is_set():
            os._exit(130)
        event.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for signum in signals:
        loop.add_signal_handler(signum, stop)
    try:
        yield event
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)
