"""Child processes that cannot outlive us.

A child is started through a small guard process (`child_guard.py`): it asks the kernel to be told when we die
(PR_SET_PDEATHSIG), adopts every orphan below it (PR_SET_CHILD_SUBREAPER), and kills all its descendants before it ends.
So also `kill -9` of us leaves nothing behind, and grandchildren (vLLM's engine core, torchrun's ranks) go too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from longshore_common.errors import Unavailable

_GUARD = Path(__file__).with_name("child_guard.py")


class Child:
    """A running child; see `spawn`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path | None) -> None:
        self.name = name
        self._process = process
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Waits for its end; gives its exit status (negative: the signal)."""
        return await self._process.wait()

    async def stop(self, grace_s: float = 5.0) -> int:
        """Asks it to end (SIGTERM), kills it and all its descendants after grace_s seconds; gives its exit status."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGUSR1)
                try:
                    async with asyncio.timeout(5.0):
                        await self._process.wait()
                except TimeoutError:
                    self._process.kill()
        return await self._process.wait()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log file; empty without one."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        with self.log_path.open(errors="replace") as file:
            return "".join(deque(file, maxlen=lines))


async def spawn(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    cwd: Path | None = None,
) -> Child:
    """Starts argv; its output is appended to log_path (none: our stderr).

    Must be called from the main thread's event loop: the death signal follows the spawning thread.

    Raises:
        Unavailable: the program cannot be started.
    """
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *argv]
    output = _open_log(log_path)
    try:
        process = await asyncio.create_subprocess_exec(
            *guard,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"cannot start {name} ({argv[0]}): {error}", retryable=False) from error
    finally:
        if output is not None:
            os.close(output)
    return Child(name, process, log_path)


def _open_log(path: Path | None) -> int | None:
    if path is None:
        return sys.stderr.fileno() if _has_fileno() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _has_fileno() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False
