"""`longshore report`: report.json and report.html of a run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Target, connected
from longshore_cli.errors import CliError
from longshore_cli.output import Output, OutputOption, print_fields, print_json

app = typer.Typer(help="Build the report of a run.", no_args_is_help=True)


@app.callback()
def report() -> None:
    """Build the report of a run."""


@app.command()
def build(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run id or name; or a report.json, to render it again.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for report.json and report.html.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Write report.json and report.html, also while the run goes on."""
    from longshore_cli.report.render import write_report

    file = Path(run)
    value = load_report(file) if file.suffix == ".json" else asyncio.run(_fetch(Target(home, server), run))
    as_json, as_html = write_report(value, out)
    if output is Output.JSON:
        print_json({"report_json": str(as_json), "report_html": str(as_html)})
    else:
        print_fields([("report", as_json), ("page", as_html)])


def load_report(file: Path) -> dict[str, Any]:
    """A report.json from disk."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}; give a run id or the path of a report.json") from error
    except ValueError as error:
        raise CliError(f"{file} is not a report: {error}; give a run id or the path of a report.json") from error
    if not isinstance(value, dict):
        raise CliError(f"{file} is not a report: it must hold an object; give a run id or the path of a report.json")
    return value


async def _fetch(target: Target, run: str) -> dict[str, Any]:
    async with connected(
        target, ["controller"], needs=["trajectory-store", "task-catalog", "inference-gateway"]
    ) as channels:
        return await fetch_report(channels["controller"], run)


async def fetch_report(channel: Any, run: str) -> dict[str, Any]:
    """The controller's report of a run."""
    from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

    stub = controller_pb2_grpc.ControllerServiceStub(channel)
    answer = await stub.GetReport(controller_pb2.GetReportRequest(run=run))
    value: dict[str, Any] = json.loads(answer.report_json)
    return value
