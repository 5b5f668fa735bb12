"""A service as a process of its own: settings -> logging -> bootstrap -> serve. Each `main.py` calls `run_service`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError

from longshore_common import log, tracing
from longshore_common.app import App, serve_until_signal
from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.settings import ServiceSettings

Settings = TypeVar("Settings", bound=ServiceSettings)

EXIT_USAGE = 2


def run_service(name: str, settings_type: Callable[[], Settings], build: Callable[[Settings], Awaitable[App]]) -> int:
    """Runs until SIGTERM or SIGINT. Exit status 0: stopped; 2: could not start, with one clear error on stderr."""
    try:
        settings = settings_type()
        log.configure(settings.log_level, settings.log_json)
        tracing.configure(name)
        asyncio.run(_serve(name, settings, build))
    except ValidationError as error:
        sys.stderr.write(f"error: {name}: {_problems(error)}\n")
        return EXIT_USAGE
    except LongshoreError as error:
        sys.stderr.write(f"error: {name}: {error.message}\n")
        return EXIT_USAGE
    return 0


async def _serve(name: str, settings: Settings, build: Callable[[Settings], Awaitable[App]]) -> None:
    if settings.metrics_address:
        serve_metrics(name, settings.metrics_address)
    if not settings.secret.get_secret_value():
        log.get_logger(__name__).warning("calls are not authenticated: LONGSHORE_SECRET is not set", service=name)
    await serve_until_signal(await build(settings))


def serve_metrics(name: str, address: str) -> None:
    """Serves the process's Prometheus page on a thread of its own, until the process ends. Raises Unavailable."""
    from prometheus_client import start_http_server

    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host)
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot serve metrics of {name} on {address}: {error}; choose another port") from error


def _problems(error: ValidationError) -> str:
    prefix = str(error.title)
    found = [f"{'.'.join(map(str, item['loc'])) or prefix}: {item['msg']}" for item in error.errors()]
    return "; ".join(found) + "; settings come from LONGSHORE_* variables, see the service's README"
