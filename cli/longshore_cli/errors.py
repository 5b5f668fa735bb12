"""How a command ends: its exit codes, and the error that carries one line for the user."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Closed set; scripts rely on it."""

    OK = 0
    FINDING = 1
    """The command worked and found something negative: lint errors, a failed run, a failed check."""
    USAGE = 2
    """Wrong usage, configuration or input; also what stops a command from working at all."""
    TIMEOUT = 3
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command with one line: what, where, what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
