"""A command that runs while something else of ours does, on this terminal, with a home in its environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from longshore_cli.connect import HOME_VARIABLE, SERVER_VARIABLE
from longshore_cli.errors import CliError
from longshore_cli.local.home import Home

_SIGNALLED = 128


async def run_beside(argv: Sequence[str], home: Home) -> int:
    """Runs argv with our own streams; its exit code (128 + signal). Signals to us are its to answer.

    Raises:
        CliError: it cannot be started.
    """
    env = {name: value for name, value in os.environ.items() if name != SERVER_VARIABLE}
    try:
        process = await asyncio.create_subprocess_exec(*argv, env={**env, HOME_VARIABLE: str(home.path)})
    except OSError as error:
        raise CliError(f"cannot run {argv[0]}: {error.strerror or error}") from error
    with _signals_to(process):
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    return code if code >= 0 else _SIGNALLED - code


@contextlib.contextmanager
def _signals_to(process: asyncio.subprocess.Process) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def pass_on(signum: int) -> None:
        # A terminal's Ctrl-C goes to the whole group, so the command has it already.
        if signum == signal.SIGINT and sys.stdin.isatty():
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signum)

    for signum in signals:
        loop.add_signal_handler(signum, pass_on, signum)
    try:
        yield
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)
