"""`longshore sandbox top`: who uses what, once or again and again."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from longshore.sandbox.v1 import sandbox_pb2
from longshore_cli.connect import Target
from longshore_cli.output import Output, print_fields, print_json, print_table
from longshore_cli.plain import to_plain
from longshore_cli.sandbox import metrics_page, views
from longshore_cli.sandbox.access import scheduler

_CLEAR = "\x1b[H\x1b[2J"


async def show(target: Target, metrics: str, every_s: float, output: Output) -> None:
    """Prints the state now; with every_s > 0 again after so many seconds, until interrupted."""
    async with scheduler(target) as stub:
        while True:
            value = await _usage(stub, metrics)
            if every_s and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            if output is Output.JSON:
                print_json(value)
            else:
                _print(value)
            sys.stdout.flush()
            if not every_s:
                return
            await asyncio.sleep(every_s)


async def _usage(stub: Any, metrics: str) -> dict[str, Any]:
    sandboxes = await stub.ListSandboxes(sandbox_pb2.ListSandboxesRequest())
    pools = await stub.ListPools(sandbox_pb2.ListPoolsRequest())
    figures = await asyncio.to_thread(metrics_page.read, metrics) if metrics else None
    return views.usage([to_plain(one) for one in sandboxes.sandboxes], [to_plain(one) for one in pools.pools], figures)


def _print(value: dict[str, Any]) -> None:
    print_fields(views.summary(value))
    if value["runs"]:
        print()
        print_table(views.RUN_COLUMNS, [views.run_row(run) for run in value["runs"]])
    if value["pools"]:
        print()
        print_table(views.POOL_COLUMNS, [views.pool_row(pool) for pool in value["pools"]])
