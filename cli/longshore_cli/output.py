"""Printing: data on stdout as a table or as JSON, progress on stderr. Colour only on terminals without NO_COLOR."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

_MIB = 1024 * 1024
_QUIET_S = 2.0
_EVERY_S = 2.0


class Output(StrEnum):
    """Forms of a command's data."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Form of the data on stdout.")]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout. Off a terminal nothing is cut to a width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.upper(), no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=4000)
    console.print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Name and value, one pair a line."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        print(f"{name:<{width}}  {'' if value is None else value}".rstrip())


def note(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


class TransferProgress:
    """Says on stderr how far a transfer is, once it takes longer than a moment."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._next = time.monotonic() + _QUIET_S

    def __call__(self, done: int) -> None:
        """Takes the bytes so far."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            note(f"{self._verb} {done / _MIB:.1f} MiB")


def age(at_ms: int) -> str:
    """How long ago, short."""
    if not at_ms:
        return ""
    passed = max(0, int(time.time() - at_ms / 1000))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if passed >= size:
            return f"{passed // size}{unit}"
    return f"{passed}s"


def short(digest: str, length: int = 12) -> str:
    """The head of a digest, for tables."""
    return digest.removeprefix("sha256:")[:length]
