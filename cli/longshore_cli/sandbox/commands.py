"""A command in a sandbox, joined to this process: its streams, its stdin, Ctrl-C, its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longshore_cli.errors import CliError, ExitCode
from longshore_cli.output import note
from longshore_cli.sandbox.access import Inside, find
from longshore_cli.sandbox.ends import advice
from longshore_common.agent_session import ExecSession, OutputPiece
from longshore_common.errors import Conflict, LongshoreError

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ_BYTES = 256 * 1024
_CHUNKS_AHEAD = 4
_INTERRUPT_WAIT_S = 3.0
"""Time for an interrupted command to end by itself before we let go of it."""
_NAMES = {False: "stdout", True: "stderr"}


@dataclass(frozen=True)
class CommandLine:
    """What to run and how; timeout in seconds, output_cap in bytes per stream."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    user: str
    timeout_s: float
    output_cap: int
    stdin: bool


def parse_env(settings: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value it has here. Raises CliError."""
    found = {}
    for setting in settings:
        name, given, value = setting.partition("=")
        if not name:
            raise CliError(f"--env {setting!r}: write NAME=VALUE, or NAME for its value here")
        if not given and name not in os.environ:
            raise CliError(f"--env {name}: it is not set here; write {name}=VALUE")
        found[name] = value if given else os.environ[name]
    return found


def stdin_is_piped() -> bool:
    """Whether there is a stdin and it is no terminal."""
    try:
        os.fstat(_STDIN)
    except OSError:
        return False
    return not os.isatty(_STDIN)


async def run(way: Inside, line: CommandLine) -> int:
    """Runs it to its end or to Ctrl-C; the exit code for this process."""
    session = way.agent.session(
        line.argv, timeout_s=line.timeout_s, env=line.env, cwd=line.cwd, user=line.user,
        output_cap=line.output_cap, stdin_open=line.stdin,
    )  # fmt: skip
    printing = asyncio.create_task(_print(session))
    feeding = asyncio.create_task(_feed(session)) if line.stdin else None
    interrupts: asyncio.Queue[None] = asyncio.Queue()
    try:
        with _interrupts_go_to(interrupts):
            if not await _until_interrupt(printing, interrupts):
                return await _interrupt(session, printing, interrupts)
        await printing
    except BrokenPipeError:
        await _signal_quietly(session, signal.SIGPIPE)
        return 128 + signal.SIGPIPE
    finally:
        await _stop(printing, feeding)
    return await _exit_code(way, session, line)


async def _stop(*tasks: asyncio.Task[None] | None) -> None:
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


async def _exit_code(way: Inside, session: ExecSession, line: CommandLine) -> int:
    end = session.end
    if end.timed_out:
        note(f"timed out after {line.timeout_s:g} s: the command and all it started were killed; see --timeout")
        return ExitCode.TIMEOUT
    if end.oom_killed:
        note("a process of the command was killed for memory: see the limits in `longshore sandbox describe`")
    if end.signal:
        note(f"the command was ended by signal {end.signal}{await _and_sandbox(way)}")
    return end.status


async def _and_sandbox(way: Inside) -> str:
    sandbox = await find(way.stub, way.sandbox_id)
    return f", with its sandbox: {advice(sandbox)}" if sandbox["state"] == "ended" else ""


# -- output


async def _print(session: ExecSession) -> None:
    async for piece in session.output():
        if piece.left_out:
            note(_left_out(piece))
        # In a thread: a slow reader of our output must not stop stdin and Ctrl-C.
        await asyncio.to_thread(_write_all, _STDERR if piece.stderr else _STDOUT, piece.data)


def _left_out(piece: OutputPiece) -> str:
    return f"[{piece.left_out} bytes of {_NAMES[piece.stderr]} are left out here; see --keep-mb]"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# -- stdin


async def _feed(session: ExecSession) -> None:
    """Ours to the command's, then its end. A command that reads no more, or has ended, is no error."""
    try:
        async for data in _stdin():
            await session.write_stdin(data)
        await session.write_stdin(b"", eof=True)
    except Conflict:
        return
    except LongshoreError as error:
        # It must not take half of its input for the whole.
        note(f"stdin broke off, the command is killed: {error.message}")
        await _signal_quietly(session, signal.SIGKILL)


async def _stdin() -> AsyncIterator[bytes]:
    """By a daemon thread: a read that never returns must not keep the process."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        # A loop that is closed meanwhile wants nothing more.
        with contextlib.suppress(RuntimeError):
            data = b"first"
            while data:
                room.acquire()
                data = _read_stdin()
                loop.call_soon_threadsafe(chunks.put_nowait, data)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while data := await chunks.get():
        room.release()
        yield data


def _read_stdin() -> bytes:
    try:
        return os.read(_STDIN, _READ_BYTES)
    except OSError:
        # Closed, or a terminal that we are in the background of.
        return b""


# -- Ctrl-C


@contextlib.contextmanager
def _interrupts_go_to(queue: asyncio.Queue[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, queue.put_nowait, None)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _until_interrupt(printing: asyncio.Task[None], interrupts: asyncio.Queue[None], wait_s: float = 0) -> bool:
    """Whether the command's output ended first; wait_s seconds at most (0: no bound)."""
    interrupt = asyncio.create_task(interrupts.get())
    try:
        await asyncio.wait({printing, interrupt}, timeout=wait_s or None, return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupt.cancel()
    return printing.done()


async def _interrupt(session: ExecSession, printing: asyncio.Task[None], interrupts: asyncio.Queue[None]) -> int:
    """Passes Ctrl-C on, lets the command end, and lets go of it when it does not, or at a second Ctrl-C."""
    await _signal_quietly(session, signal.SIGINT)
    if await _until_interrupt(printing, interrupts, _INTERRUPT_WAIT_S):
        await printing
        return session.end.status
    note("interrupted; the command got SIGINT and goes on in the sandbox until its end or --timeout")
    return ExitCode.INTERRUPTED


async def _signal_quietly(session: ExecSession, number: signal.Signals) -> None:
    with contextlib.suppress(LongshoreError):
        await session.signal(number)
