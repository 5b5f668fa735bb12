"""`longshore policy`: policy versions that the gateway knows."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Start, Target, connected
from longshore_cli.output import Output, OutputOption, age, print_json, print_table, short

app = typer.Typer(help="Look at policy versions.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Look at policy versions."""


@app.command("list")
def list_(
    alias: Annotated[str, typer.Argument(metavar="[ALIAS]", help="Only versions of this alias.")] = "",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """List policy versions, with what serves and what is current."""

    async def work() -> list[Any]:
        from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc

        async with connected(Target(home, server), ["inference-gateway"], start=Start.NEVER) as channels:
            stub = gateway_pb2_grpc.GatewayServiceStub(channels["inference-gateway"])
            return list((await stub.ListPolicies(gateway_pb2.ListPoliciesRequest(alias=alias))).policies)

    from longshore_cli.plain import to_plain

    found = [to_plain(one) for one in asyncio.run(work())]
    if output is Output.JSON:
        print_json(found)
        return
    rows = [
        (
            one["served_name"],
            one["version"],
            "*" if one["current"] else "",
            one["kind"],
            one["state"],
            short(one["digest"]),
            age(one["published_at_ms"]),
        )
        for one in found
    ]
    print_table(["name", "version", "current", "kind", "state", "digest", "age"], rows)
