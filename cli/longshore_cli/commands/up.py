"""`longshore up`: every service in this process, until a signal."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, choose_home
from longshore_cli.local.home import DEFAULT_HOME, Home
from longshore_cli.output import note


def up(
    home: HomeOption = DEFAULT_HOME,
    port_base: Annotated[
        int, typer.Option("--port-base", min=0, max=65500, help="First port; 0 takes free ones.")
    ] = 7400,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve all services' Prometheus metrics on one page.")
    ] = "",
) -> None:
    """Start all services in this process; Ctrl-C stops them and everything they started."""
    asyncio.run(_up(choose_home(home), port_base, log_level, metrics))


async def _up(home: Home, port_base: int, log_level: str, metrics: str) -> None:
    from longshore_cli.errors import CliError, ExitCode
    from longshore_cli.local.process import local_services, logs_to, stop_on_signal
    from longshore_cli.local.settings import SERVICES, check_ports, fixed_layout, free_layout
    from longshore_common.service import serve_metrics

    if log_level not in ("debug", "info", "warning", "error"):
        raise CliError(f"--log-level {log_level} is unknown: use debug, info, warning or error")
    layout = fixed_layout(port_base) if port_base else free_layout()
    # Before the first file is made: a port in use leaves nothing behind.
    check_ports(layout, SERVICES)
    if metrics:
        serve_metrics("longshore up", metrics)
    with stop_on_signal() as stop, logs_to(home, log_level, also_stderr=True):
        async with local_services(home, layout, log_level=log_level) as local:
            for name, address in local.endpoints.grpc.items():
                http = local.endpoints.http.get(name)
                note(f"{name:<18} {address}{f'   http://{http}' if http else ''}")
            note(f"up: home {home.path}; Ctrl-C stops everything")
            waiter = asyncio.ensure_future(stop.wait())
            await asyncio.wait(list[asyncio.Future[Any]]((waiter, local.failed)), return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
            if local.failed.done():
                name, error = local.failed.result()
                raise CliError(f"{name} died: {error}; see its log lines above", ExitCode.FINDING)
            note("stopping")
    note("stopped: nothing is left running")
