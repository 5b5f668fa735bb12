"""`longshore sandbox`: what is running, and how it is limited."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Start, Target, connected
from longshore_cli.output import Output, OutputOption, age, print_json, print_table, short

app = typer.Typer(help="Look at sandboxes.", no_args_is_help=True)


@app.callback()
def sandbox() -> None:
    """Look at sandboxes."""


@app.command("list")
def list_(
    run: Annotated[str, typer.Option("--run", help="Only those of this run.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """List sandboxes."""

    async def work() -> list[Any]:
        from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

        async with connected(Target(home, server), ["sandbox-scheduler"], start=Start.NEVER) as channels:
            stub = sandbox_pb2_grpc.SandboxServiceStub(channels["sandbox-scheduler"])
            request = sandbox_pb2.ListSandboxesRequest(run_id=run, include_ended=everything)
            return list((await stub.ListSandboxes(request)).sandboxes)

    from longshore_cli.plain import to_plain

    found = [to_plain(one) for one in asyncio.run(work())]
    if output is Output.JSON:
        print_json(found)
        return
    rows = [
        (
            one["sandbox_id"],
            f"{one['state']}{' (' + one['end_reason'] + ')' if one['end_reason'] else ''}",
            one["runtime"],
            one["attempt_id"],
            short(one["task_digest"]),
            short(one["image_digest"]),
            _limits(one),
            age(one["created_at_ms"]),
        )
        for one in found
    ]
    print_table(["sandbox", "state", "runtime", "attempt", "task", "image", "limits", "age"], rows)


def _limits(one: dict[str, Any]) -> str:
    enforced = (one.get("enforcement") or {}).get("by_limit", {})
    return ", ".join(f"{name}: {how}" for name, how in sorted(enforced.items()))
