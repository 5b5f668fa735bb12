"""`longshore db`: the services' databases, as their LONGSHORE_<SERVICE>_DATABASE_URL and _DATABASE_SCHEMA name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli.output import Output, OutputOption, note, print_json, print_table

if TYPE_CHECKING:
    from longshore_cli.databases import State

app = typer.Typer(help="Bring databases up to date, and see whether they are.", no_args_is_help=True)

ServiceOption = Annotated[
    list[str] | None, typer.Option("--service", help="Only this service's; may be given several times.")
]
PatienceOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait for a database that is not there yet.")
]


@app.command("migrate")
def migrate_(service: ServiceOption = None, wait: PatienceOption = 60.0, output: OutputOption = Output.TABLE) -> None:
    """Bring databases up to date. What is up to date stays as it is."""
    from longshore_cli.databases import chosen, state

    done: list[State] = []
    for database in chosen(service):
        before = state(database, wait)
        if before.revision != before.newest:
            note(f"{database.service}: {before.revision or 'empty'} to {before.newest}")
            database.migrate(wait)
        done.append(state(database))
    _show(done, output)


@app.command("status")
def status(service: ServiceOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the revision of each database; exit code 1 when one is behind the code."""
    from longshore_cli.databases import chosen, state
    from longshore_cli.errors import ExitCode

    found = [state(database) for database in chosen(service)]
    _show(found, output)
    if any(one.revision != one.newest for one in found):
        raise typer.Exit(ExitCode.FINDING)


def _show(states: list[State], output: Output) -> None:
    if output is Output.JSON:
        print_json([one.value() for one in states])
        return
    rows = [(one.service, one.revision or "", one.newest, one.url) for one in states]
    print_table(["service", "revision", "newest", "database"], rows)
