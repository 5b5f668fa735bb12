"""The edge of every command: errors become one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from longshore_cli.errors import CliError, ExitCode

DEBUG_VARIABLE = "LONGSHORE_DEBUG"


def fail(message: str) -> None:
    """Prints `error: ...` on stderr."""
    print(f"error: {message}", file=sys.stderr)


class CommandGroup(TyperGroup):
    """The root group. Everything below it raises; only this one catches."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command and maps what it raises."""
        from longshore_common.errors import ErrorCode, LongshoreError

        try:
            return super().invoke(ctx)
        except CliError as error:
            fail(error.message)
            raise typer.Exit(int(error.code)) from error
        except LongshoreError as error:
            fail(error.message)
            timed_out = error.code is ErrorCode.DEADLINE_EXCEEDED
            raise typer.Exit(int(ExitCode.TIMEOUT if timed_out else ExitCode.USAGE)) from error
        except KeyboardInterrupt as error:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from error
        except (typer.TyperException, typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:  # the process's edge: a user gets a line, not a traceback
            if os.environ.get(DEBUG_VARIABLE):
                raise
            fail(f"internal fault, {type(error).__name__}: {error}; set {DEBUG_VARIABLE}=1 to see where, and report it")
            raise typer.Exit(int(ExitCode.USAGE)) from error
