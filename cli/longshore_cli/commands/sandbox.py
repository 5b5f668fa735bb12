"""`longshore sandbox`: what is running, how it is limited, and a way in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Target
from longshore_cli.errors import CliError
from longshore_cli.output import Output, OutputOption, note, print_fields, print_json, print_table

app = typer.Typer(help="Look at sandboxes, run commands in them, copy files, sweep.", no_args_is_help=True)

SandboxArgument = Annotated[str, typer.Argument(metavar="SANDBOX", help="Its id, as `sandbox list` shows it.")]
_MIB = 1024 * 1024
_MAX_TIMEOUT_S = 7 * 24 * 3600.0


@app.callback()
def sandbox() -> None:
    """Look at sandboxes, run commands in them, copy files, sweep."""


def _ask(target: Target, call: Callable[[Any, Any], Any]) -> Any:
    """The answer of one call: call(stub, the message classes)."""

    async def work() -> Any:
        from longshore.sandbox.v1 import sandbox_pb2
        from longshore_cli.sandbox.access import scheduler

        async with scheduler(target) as stub:
            return await call(stub, sandbox_pb2)

    return asyncio.run(work())


@app.command("list")
def list_(
    run: Annotated[str, typer.Option("--run", help="Only those of this run.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """List sandboxes."""
    answer = _ask(
        Target(home, server),
        lambda stub, pb: stub.ListSandboxes(pb.ListSandboxesRequest(run_id=run, include_ended=everything)),
    )
    from longshore_cli.plain import to_plain
    from longshore_cli.sandbox import views

    found = [to_plain(one) for one in answer.sandboxes]
    if output is Output.JSON:
        print_json(found)
    else:
        print_table(views.LIST_COLUMNS, [views.list_row(one) for one in found])


@app.command()
def describe(
    sandbox: SandboxArgument,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Show all of one sandbox: limits and what enforces them, and, when it has ended, why and what to do."""

    async def work() -> dict[str, Any]:
        from longshore_cli.sandbox.access import find, scheduler

        async with scheduler(Target(home, server)) as stub:
            return await find(stub, sandbox)

    found = asyncio.run(work())
    from longshore_cli.sandbox import ends, views

    if output is Output.JSON:
        print_json({**found, "end_words": ends.happened(found), "what_to_do": ends.what_to_do(found)})
    else:
        print_fields(views.described(found))


@app.command("exec")
def exec_(
    sandbox: SandboxArgument,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="argv, after `--`; no shell is added.")],
    stdin: Annotated[
        bool | None,
        typer.Option("-i/-n", "--stdin/--no-stdin", help="Forward stdin. Default: when it is not a terminal."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, or NAME for its value here; repeatable.")
    ] = None,
    cwd: Annotated[str, typer.Option("--cwd", "-w", help="Working folder. Default: the image's.")] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="Name or uid in the sandbox. Default: the image's.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds, then the command is killed.")] = 3600.0,
    keep_mb: Annotated[
        int, typer.Option("--keep-mb", min=1, max=64, help="MiB kept of each stream; the middle of more is left out.")
    ] = 16,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Run a command in a sandbox. Exits as the command does (128 + signal), or with 3 when it timed out.

    Streams are passed on as they come, byte by byte. There is no terminal inside. Ctrl-C interrupts the command.
    """
    if not (0 < timeout <= _MAX_TIMEOUT_S and math.isfinite(timeout)):
        raise CliError(f"--timeout {timeout:g}: give seconds, more than 0 and at most {_MAX_TIMEOUT_S:.0f}")
    if cwd and not cwd.startswith("/"):
        raise CliError(f"--cwd {cwd}: give an absolute path in the sandbox")
    from longshore_cli.sandbox import commands

    line = commands.CommandLine(
        argv=command,
        env=commands.parse_env(env or []),
        cwd=cwd,
        user=user,
        timeout_s=timeout,
        output_cap=keep_mb * _MIB,
        stdin=commands.stdin_is_piped() if stdin is None else stdin,
    )

    async def work() -> int:
        from longshore_cli.sandbox.access import inside

        async with inside(Target(home, server), sandbox) as way:
            return await commands.run(way, line)

    raise typer.Exit(asyncio.run(work()))


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="PATH, or SANDBOX:/path.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="PATH, or SANDBOX:/path.")],
    max_mb: Annotated[int, typer.Option("--max-mb", min=1, help="Most MiB to take out of a sandbox.")] = 4096,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Copy a file or a folder into or out of a sandbox; checked by digest, whole or not at all."""
    from longshore_cli.sandbox import copies

    wanted = copies.parse(source, destination)

    async def work() -> copies.Copied:
        from longshore_cli.sandbox.access import inside

        async with inside(Target(home, server), wanted.sandbox_id) as way:
            return await copies.copy(way.agent, wanted, max_mb * _MIB)

    copied = asyncio.run(work())
    if output is Output.JSON:
        print_json({"source": copied.source, "destination": copied.destination, "bytes": copied.bytes})
    else:
        note(f"{copied.source} -> {copied.destination}: {copied.bytes} bytes")


@app.command()
def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Remove now what lost its sandbox: what the scheduler's periodic sweep would remove."""
    answer = _ask(Target(home, server), lambda stub, pb: stub.SweepSandboxes(pb.SweepSandboxesRequest(dry_run=dry_run)))
    from longshore_cli.plain import to_plain
    from longshore_cli.sandbox import views

    removed = [to_plain(one) for one in answer.removed]
    if output is Output.JSON:
        print_json(removed)
    elif removed:
        print_table(views.SWEEP_COLUMNS, [(one["kind"], one["name"], one["why"]) for one in removed])
    note(f"{len(removed)} objects {'would be removed' if dry_run else 'removed'}")


@app.command()
def pool(output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None) -> None:
    """List warm pools: what is ready, what they are heading for, how often a claim found one."""
    answer = _ask(Target(home, server), lambda stub, pb: stub.ListPools(pb.ListPoolsRequest()))
    from longshore_cli.plain import to_plain
    from longshore_cli.sandbox import views

    pools = [to_plain(one) for one in answer.pools]
    if output is Output.JSON:
        print_json(pools)
    else:
        print_table(views.POOL_COLUMNS, [views.pool_row(one) for one in pools])


@app.command()
def top(
    watch: Annotated[float, typer.Option("--watch", help="Again every so many seconds; 0: once.")] = 0.0,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="The scheduler's metrics page, for queue and places.")
    ] = "",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Show sandboxes by run, state and network, the pools, and the queue."""
    if not (watch == 0 or 0.1 <= watch < math.inf):
        raise CliError(f"--watch {watch:g}: give seconds, at least 0.1")
    from longshore_cli.sandbox import top as live

    asyncio.run(live.show(Target(home, server), metrics, watch, output))
