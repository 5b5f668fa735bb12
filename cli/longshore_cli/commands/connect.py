"""`longshore connect`: a release on a cluster, as if it ran here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli.connect import CLUSTER_HOME, HOME_VARIABLE
from longshore_cli.output import note

if TYPE_CHECKING:
    from longshore_cli.cluster.connection import Connection
    from longshore_cli.cluster.kubectl import Kubectl
    from longshore_cli.local.home import Home


def connect(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]...", help="Run this with the home, and end with it.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the release.")] = "longshore",
    release: Annotated[str, typer.Option("--release", help="Name of the release.")] = "longshore",
    home: Annotated[
        Path, typer.Option("--home", envvar=HOME_VARIABLE, help="Home folder that stands for the release.")
    ] = CLUSTER_HOME,
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="As kubectl takes it.")] = "",
    context: Annotated[str, typer.Option("--context", help="As kubectl takes it.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds until all forwards must stand.")] = 60.0,
) -> None:
    """Reach a release on a cluster through kubectl, until Ctrl-C or until COMMAND ends.

    Meanwhile all commands with this --home talk to the release. With COMMAND the exit code is its own.
    """
    from longshore_cli.cluster.kubectl import Kubectl
    from longshore_cli.local.home import Home

    kubectl = Kubectl(namespace, kubeconfig, context)
    code = asyncio.run(_connect(kubectl, release, Home(home), command or [], timeout))
    if code:
        raise typer.Exit(code)


async def _connect(kubectl: Kubectl, release: str, home: Home, command: list[str], timeout_s: float) -> int:
    from longshore_cli.cluster.beside import run_beside
    from longshore_cli.cluster.connection import connected_release
    from longshore_cli.local.process import stop_on_signal

    if command:
        async with connected_release(kubectl, release, home, timeout_s):
            return await run_beside(command, home)
    with stop_on_signal() as stop:
        async with connected_release(kubectl, release, home, timeout_s) as connection:
            _say(connection, home, f"{release} in {kubectl.namespace}")
            await stop.wait()
    note("disconnected")
    return 0


def _say(connection: Connection, home: Home, release: str) -> None:
    for port, here in connection.ports.items():
        way = "http://" if port.kind == "http" else ""
        note(f"{port.component:<18} {port.kind:<6} {way}127.0.0.1:{here}   {port.target}:{port.number}")
    note(f"connected to {release}: use --home {home.path}, or export {HOME_VARIABLE}={home.path}; Ctrl-C ends it")
