"""`longshore artifact`: models and demonstrations that run specs name by relative path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Start, Target, connected
from longshore_cli.output import Output, OutputOption, TransferProgress, age, note, print_json, print_table, short

app = typer.Typer(help="Put models and demonstrations where run specs name them.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Relative path, as in the spec: demo/model.")]


@app.callback()
def artifact() -> None:
    """Put models and demonstrations where run specs name them."""


def _run(target: Target, work: Any) -> Any:
    """Calls work with a stub of the controller."""

    async def called() -> Any:
        from longshore.controller.v1 import controller_pb2_grpc

        async with connected(target, ["controller"], start=Start.NEVER) as channels:
            return await work(controller_pb2_grpc.ControllerServiceStub(channels["controller"]))

    return asyncio.run(called())


@app.command()
def push(
    local: Annotated[Path, typer.Argument(metavar="LOCAL", help="File or folder here.")],
    name: NameArgument,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Push a file or folder; the same content again changes nothing."""
    from longshore_cli.artifacts import push as push_to
    from longshore_cli.plain import to_plain

    done = _run(Target(home, server), lambda stub: push_to(stub, local, name, TransferProgress("sent")))
    if output is Output.JSON:
        print_json({**to_plain(done.artifact), "changed": done.changed})
        return
    note(f"pushed {local} as {name}" if done.changed else f"{name} is there already, with the same content")
    _print([to_plain(done.artifact)])


@app.command("list")
def list_(output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None) -> None:
    """List what was pushed, and which runs use it."""
    from longshore.controller.v1 import controller_pb2
    from longshore_cli.plain import to_plain

    answer = _run(Target(home, server), lambda stub: stub.ListArtifacts(controller_pb2.ListArtifactsRequest()))
    found = [to_plain(one) for one in answer.artifacts]
    if output is Output.JSON:
        print_json(found)
    else:
        _print(found)


@app.command()
def remove(
    name: NameArgument, output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None
) -> None:
    """Remove one that no run uses any more."""
    from longshore.controller.v1 import controller_pb2

    request = controller_pb2.RemoveArtifactRequest(name=name)
    _run(Target(home, server), lambda stub: stub.RemoveArtifact(request))
    if output is Output.JSON:
        print_json({"name": name, "removed": True})
    else:
        note(f"removed {name}")


def _print(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["name"],
            one["kind"],
            one["bytes"],
            one["files"],
            short(one["digest"]),
            age(one["put_at_ms"]),
            ", ".join(one["used_by"]),
        )
        for one in found
    ]
    print_table(["name", "kind", "bytes", "files", "digest", "age", "used by"], rows)
