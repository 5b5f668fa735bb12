"""The command tree. Imports only what parsing needs; each command imports its work when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from longshore_cli.commands import artifact, connect, db, demo, doctor, policy, report, run, sandbox, task, up
from longshore_cli.frame import CommandGroup

app = typer.Typer(
    name="longshore",
    cls=CommandGroup,
    help="Trains tool-using code agents with reinforcement learning, and says honestly whether it helped.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 negative finding, 2 usage or configuration, 3 timed out.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"longshore {version('longshore')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Trains tool-using code agents with reinforcement learning, and says honestly whether it helped."""


app.add_typer(demo.app, name="demo")
app.command("up")(up.up)
app.command("connect")(connect.connect)
app.add_typer(run.app, name="run")
app.add_typer(task.app, name="task")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(policy.app, name="policy")
app.add_typer(artifact.app, name="artifact")
app.add_typer(report.app, name="report")
app.add_typer(db.app, name="db")
app.command("doctor")(doctor.doctor)
