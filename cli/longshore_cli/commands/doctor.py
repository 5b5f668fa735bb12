"""`longshore doctor`: what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli.connect import HomeOption, choose_home
from longshore_cli.errors import ExitCode
from longshore_cli.output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from longshore_cli.doctor.checks import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def doctor(
    port_base: Annotated[int, typer.Option("--port-base", help="First port of `longshore up`.")] = 7400,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Check this machine; exit code 1 when something required is missing."""
    from longshore_cli.doctor.checks import Mark, all_checks

    checks = list(all_checks(choose_home(home).path, port_base))
    failed = [check for check in checks if check.required and check.mark is Mark.FAIL]
    if output is Output.JSON:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
        print(f"\n{'everything required is there' if not failed else f'{len(failed)} required checks failed'}")
    if failed:
        raise typer.Exit(int(ExitCode.FINDING))


def _print(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    section = ""
    for check in checks:
        if check.section != section:
            section = check.section
            console.print(Text(f"\n{section}", style="bold"))
        sign, colour = _SIGNS[check.mark]
        line = Text(f"  {sign} ", style=colour).append(f"{check.name}: {check.detail}", style="default")
        console.print(line)
        if check.hint:
            console.print(Text(f"      {check.hint}", style="dim"))
