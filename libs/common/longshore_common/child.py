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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from longshore_common.errors import Unavailable

_GUARD = Path(__file__).with_name("child_guard.py")
_KEPT_LINES = 200
_READ_BYTES = 65536
_LONGEST_LINE = 16384
_DRAIN_S = 2.0


class Child:
    """A running child; see `spawn`."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        log_path: Path | None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self._process = process
        self.log_path = log_path
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader = asyncio.create_task(self._read(on_line)) if on_line is not None else None

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
        status = await self._process.wait()
        if self._reader is not None:
            # What it said last is why it ended.
            await asyncio.wait([self._reader], timeout=_DRAIN_S)
        return status

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
        return await self.wait()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its output; empty when it goes to our stderr."""
        if self._reader is not None:
            return "".join(f"{line}\n" for line in list(self._kept)[-lines:])
        if self.log_path is None or not self.log_path.exists():
            return ""
        with self.log_path.open(errors="replace") as file:
            return "".join(deque(file, maxlen=lines))

    async def _read(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        pending = b""
        while data := await self._process.stdout.read(_READ_BYTES):
            # Progress bars end their lines with carriage returns.
            *lines, pending = (pending + data).replace(b"\r", b"\n").split(b"\n")
            if len(pending) > _LONGEST_LINE:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._line(line, on_line)
        self._line(pending, on_line)

    def _line(self, raw: bytes, on_line: Callable[[str], None]) -> None:
        text = raw.decode(errors="replace").rstrip()
        if text:
            self._kept.append(text)
            on_line(text)


async def spawn(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Child:
    """Starts argv; its output is appended to log_path (none: our stderr), or given to on_line, line by line.

    Must be called from the main thread's event loop: the death signal follows the spawning thread.

    Raises:
        Unavailable: the program cannot be started.
    """
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *argv]
    output = _open_log(log_path) if on_line is None else None
    stream = output if on_line is None else subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *guard,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream if on_line is None else subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"cannot start {name} ({argv[0]}): {error}", retryable=False) from error
    finally:
        if output is not None:
            os.close(output)
    return Child(name, process, log_path, on_line)


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
