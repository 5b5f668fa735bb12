"""How a command finds the services: `--server`, else what runs on the home, else a moment's start in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli.errors import CliError
from longshore_cli.local.home import DEFAULT_HOME, DEMO_HOME, Home

if TYPE_CHECKING:
    import grpc.aio

CLUSTER_HOME = Path("runs/cluster")
"""Home of `longshore connect` unless another is named."""
HOME_VARIABLE = "LONGSHORE_HOME"
SECRET_VARIABLE = "LONGSHORE_SECRET"
SERVER_VARIABLE = "LONGSHORE_SERVER"

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar=HOME_VARIABLE, help="Home folder of a local run.", show_default=str(DEFAULT_HOME)),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar=SERVER_VARIABLE,
        help=f"host:port of the service this command talks to; its secret is read from {SECRET_VARIABLE}.",
    ),
]


class Start(Enum):
    """What to do when nothing runs on the home."""

    NEVER = "say so"
    SNAPSHOT = "start the services for a moment on a copy of the home's databases, for reading"
    SCRATCH = "like SNAPSHOT, and the home may be empty or missing"
    HOME = "start the services for a moment on the home itself"


Stubs = Mapping[str, "grpc.aio.Channel"]


@dataclass(frozen=True)
class Target:
    """What the user said about where to connect."""

    home: Path | None
    server: str | None


def choose_home(given: Path | None) -> Home:
    """The home given; else the default one, or the demo's when only that one exists or runs."""
    if given is not None:
        return Home(given)
    default, demo = Home(DEFAULT_HOME), Home(DEMO_HOME)
    if default.endpoints() is None and (demo.endpoints() is not None or (demo.exists() and not default.exists())):
        return demo
    return default


def agents_address(target: Target) -> str:
    """Where agents of sandboxes are reached from here; empty: where the scheduler says."""
    live = None if target.server else choose_home(target.home).endpoints()
    return live.agents if live is not None else ""


@contextlib.asynccontextmanager
async def connected(
    target: Target, names: Sequence[str], *, needs: Sequence[str] = (), start: Start = Start.SNAPSHOT
) -> AsyncIterator[Stubs]:
    """Channels to the named services for the length of the block.

    Args:
        names: services to talk to. With --server only one can be named by it: the first.
        needs: further services that these call, wanted when they must be started here.
        start: what to do when nothing runs on the home.

    Raises:
        CliError: nothing runs and nothing may be started.
    """
    from longshore_common.grpc_client import open_channel

    async with contextlib.AsyncExitStack() as stack:
        if target.server:
            addresses, secret = {names[0]: target.server}, os.environ.get(SECRET_VARIABLE, "")
        else:
            addresses, secret = await _local_addresses(stack, choose_home(target.home), [*names, *needs], start)
        channels = {name: open_channel(addresses[name], secret, timeout_s=60.0) for name in names if name in addresses}
        for channel in channels.values():
            stack.push_async_callback(channel.close)
        yield channels


async def _local_addresses(
    stack: contextlib.AsyncExitStack, home: Home, names: Sequence[str], start: Start
) -> tuple[dict[str, str], str]:
    live = home.endpoints()
    if live is not None:
        return live.grpc, home.secret()
    if home.in_use():
        raise CliError(f"the services of {home.path} are starting or stopping: try again in a few seconds")
    if start is Start.NEVER:
        raise CliError(
            f"nothing runs on {home.path}: start the services with `longshore up --home {home.path}`, "
            "or point --home or --server to those you mean"
        )
    if start is Start.SNAPSHOT and not home.exists():
        raise CliError(
            f"nothing runs on {home.path} and nothing is stored there: run `longshore demo` or `longshore up` first, "
            "or point --home or --server to what you mean"
        )
    from longshore_cli.local.process import local_services, logs_to, snapshot_services
    from longshore_cli.local.settings import free_layout

    if start is Start.HOME:
        stack.enter_context(logs_to(home, "info"))
        local = await stack.enter_async_context(local_services(home, free_layout(), names))
    else:
        stack.enter_context(logs_nowhere())
        local = await stack.enter_async_context(snapshot_services(home, names))
    return local.endpoints.grpc, local.secret


@contextlib.contextmanager
def logs_nowhere() -> Iterator[None]:
    """Services started for a moment log nothing but errors."""
    from longshore_common import log

    log.configure("error")
    yield
