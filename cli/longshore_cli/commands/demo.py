"""`longshore demo`: the main job on this machine, from nothing to a report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from longshore_cli.connect import CLUSTER_HOME, HOME_VARIABLE
from longshore_cli.errors import CliError, ExitCode
from longshore_cli.output import Output, OutputOption, note, print_fields, print_json

app = typer.Typer(help="Run the main job here, or prepare it on a cluster.", invoke_without_command=True)


@app.callback()
def demo(
    context: typer.Context,
    home: Annotated[Path, typer.Option("--home", envvar=HOME_VARIABLE, help="Home folder.")] = Path("runs/demo"),
    seed: Annotated[int | None, typer.Option(min=0, show_default="1", help="Of tasks, model and run.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, show_default="as the spec says", help="Training steps.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few tasks and steps: shows that it works, not that it learns.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the home first.")] = False,
    port_base: Annotated[int, typer.Option("--port-base", min=0, max=65500, help="First port; 0 takes free ones.")] = 0,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve all services' Prometheus metrics on one page.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the main job here: tasks, warm start, GRPO, report.

    Makes tasks and a tiny model, trains it against the real engine in sandboxes, evaluates it on held-out tasks and
    writes report.html. Interrupt it anywhere and run it again: it goes on.
    """
    if context.invoked_subcommand is not None:
        return
    from longshore_cli.demo.config import settle_config
    from longshore_cli.demo.runner import DemoResult, clear_home, finished, run_demo
    from longshore_cli.demo.summary import summary_rows
    from longshore_cli.local.home import Home
    from longshore_cli.local.settings import SERVICES, check_ports, fixed_layout, free_layout
    from longshore_common.service import serve_metrics

    place = Home(home)
    if fresh:
        clear_home(place)
    config = settle_config(place, seed, steps, quick)
    result: DemoResult | None = finished(place)
    if result is not None:
        note(f"this demo is finished; --fresh starts over. Its result, from {place.path}:")
    else:
        layout = fixed_layout(port_base) if port_base else free_layout()
        check_ports(layout, SERVICES)
        if metrics:
            serve_metrics("longshore demo", metrics)
        result = asyncio.run(run_demo(place, config, layout))
    page = result.folder / "report.html"
    if output is Output.JSON:
        print_json(
            {"report_json": str(result.folder / "report.json"), "report_html": str(page), "report": result.report}
        )
    else:
        print_fields(summary_rows(result.report, _shown(page)))
    if not (result.report.get("capture_check") or {}).get("ok", True):
        raise typer.Exit(int(ExitCode.FINDING))


@app.command()
def prepare(
    cluster: Annotated[bool, typer.Option("--cluster", help="On the release that HOME is connected to.")] = False,
    home: Annotated[
        Path, typer.Option("--home", envvar=HOME_VARIABLE, help="Home folder of `longshore connect`.")
    ] = CLUSTER_HOME,
    seed: Annotated[int | None, typer.Option(min=0, show_default="1", help="Of tasks, model and run.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few tasks and steps: shows that it works, not that it learns.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put the main job's tasks, demonstrations and tiny model on a connected release.

    Makes them here, imports, freezes and probes the tasks there, and pushes the rest as artifacts. What is done already
    is kept. Then submit examples/runs/cluster-grpo.yaml.
    """
    from longshore_cli.demo.cluster import prepare_release
    from longshore_cli.demo.config import settle_config
    from longshore_cli.local.home import Home

    if not cluster:
        raise CliError("`longshore demo` prepares by itself here; add --cluster to prepare a connected release")
    place = Home(home)
    done = asyncio.run(prepare_release(place, settle_config(place, seed, None, quick, cluster=True)))
    if output is Output.JSON:
        print_json(
            {"dataset": done.dataset, "spec": str(done.spec), "artifacts": done.artifacts, "changed": done.changed}
        )
        return
    note(f"prepared; now: longshore run submit {_shown(done.spec)} --home {_shown(place.path)}")


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
