"""Commands of one sandbox by exec id: each runs once, whoever attaches sees it from any offset, and it always ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.digests import digest
from longshore_common.errors import (
    Conflict,
    Internal,
    InvalidSpec,
    LongshoreError,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from longshore_sandbox_scheduler.domain.output import DEFAULT_CAP, Chunk, OutputBuffer
from longshore_sandbox_scheduler.domain.runtime import (
    Command,
    CommandEnd,
    HostedAgent,
    OutputStream,
    RunningCommand,
)

_MAX_RUNNING = 64
_MAX_KEPT = 1024
_MAX_KEPT_BYTES = 64 * 1024 * 1024
_MAX_CAP = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_KILL_WAIT_S = 10.0
_CLOSE_WAIT_S = 5.0


@dataclass(frozen=True)
class ExecSpec:
    """A command with its limits; caps in bytes (0: 1 MiB), timeout in seconds."""

    exec_id: str
    command: Command
    timeout_s: float
    stdout_cap: int = 0
    stderr_cap: int = 0

    def check(self) -> None:
        """Raises InvalidSpec naming the field."""
        if not self.exec_id:
            raise InvalidSpec("exec_id is empty; choose one per command", field="exec_id")
        if not self.command.argv or not self.command.argv[0]:
            raise InvalidSpec("command is empty", field="command")
        if not 0 < self.timeout_s < float("inf"):
            raise InvalidSpec(f"timeout_s is {self.timeout_s}; it must be positive", field="timeout_s")
        for name, cap in (("stdout_cap", self.stdout_cap), ("stderr_cap", self.stderr_cap)):
            if not 0 <= cap <= _MAX_CAP:
                raise InvalidSpec(f"{name} is {cap}; it must be 0 to {_MAX_CAP}", field=name)
        texts = (*self.command.argv, *self.command.env, *self.command.env.values(), self.command.cwd)
        if any("\0" in text for text in texts):
            raise InvalidSpec("command, env and cwd must not contain NUL bytes", field="command")

    def fingerprint(self) -> str:
        """What must be the same for the same exec_id."""
        command = self.command
        return digest(
            [list(command.argv), dict(command.env), command.cwd, command.user, command.stdin.hex(), command.stdin_open]
        )


@dataclass(frozen=True)
class Output:
    """Bytes of a stream at an offset."""

    stream: OutputStream
    chunk: Chunk


@dataclass(frozen=True)
class Exited:
    """The end of an exec; byte counts are before truncation."""

    end: CommandEnd
    timed_out: bool
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    duration_s: float


class Exec:
    """One command, running or ended."""

    def __init__(self, spec: ExecSpec, clock: Clock) -> None:
        self.spec = spec
        self.fingerprint = spec.fingerprint()
        self._clock = clock
        self._buffers = {
            OutputStream.STDOUT: OutputBuffer(spec.stdout_cap or DEFAULT_CAP),
            OutputStream.STDERR: OutputBuffer(spec.stderr_cap or DEFAULT_CAP),
        }
        self._changed = asyncio.Event()
        self._started: asyncio.Future[RunningCommand] = asyncio.get_running_loop().create_future()
        self._exited: Exited | None = None
        self._error: LongshoreError | None = None
        self.forgotten = False

    @property
    def done(self) -> bool:
        """Whether it has ended or failed to start."""
        return self._exited is not None or self._error is not None

    @property
    def kept_bytes(self) -> int:
        """An upper bound of the output held."""
        caps = (self.spec.stdout_cap or DEFAULT_CAP, self.spec.stderr_cap or DEFAULT_CAP)
        totals = (buffer.total for buffer in self._buffers.values())
        return 0 if self.forgotten else sum(min(cap, total) for cap, total in zip(caps, totals, strict=True))

    def forget_output(self) -> None:
        """Frees the output; the exec id stays known, so that it is never run again."""
        self.forgotten = True
        self._buffers = {stream: OutputBuffer(0) for stream in OutputStream}

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _take(self, stream: OutputStream, data: bytes) -> bool:
        buffer = self._buffers[stream]
        buffer.append(data)
        self._notify()
        return buffer.full

    async def run(self, sandbox: HostedAgent) -> None:
        """Runs it to its end; never raises a LongshoreError, attached callers get it."""
        begin = self._clock.monotonic()
        try:
            running = await sandbox.start_command(self.spec.command, self._take)
            self._started.set_result(running)
            end, timed_out = await self._wait(running)
            self._finish(end, timed_out, self._clock.monotonic() - begin)
        except LongshoreError as error:
            self._error = error
        finally:
            if not self.done:
                self._error = Internal(f"exec {self.spec.exec_id} was broken off")
            if not self._started.done():
                self._started.set_exception(self._error or Internal("exec did not start"))
                self._started.exception()  # Retrieved: nobody may be waiting for stdin.
            self._notify()

    async def _wait(self, running: RunningCommand) -> tuple[CommandEnd, bool]:
        waiting = asyncio.ensure_future(running.wait())
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self.spec.timeout_s)
            if done:
                return waiting.result(), False
            await running.kill_tree()
            done, _ = await asyncio.wait({waiting}, timeout=_KILL_WAIT_S)
            if not done:
                raise Unavailable(f"exec {self.spec.exec_id} did not end {_KILL_WAIT_S:.0f} s after it was killed")
            return waiting.result(), True
        finally:
            waiting.cancel()

    def _finish(self, end: CommandEnd, timed_out: bool, duration_s: float) -> None:
        out, err = self._buffers[OutputStream.STDOUT], self._buffers[OutputStream.STDERR]
        self._exited = Exited(end, timed_out, out.total, err.total, out.truncated, err.truncated, duration_s=duration_s)

    async def attach(self, stdout_offset: int, stderr_offset: int) -> AsyncIterator[Output | Exited]:
        """Output from the offsets on, then Exited as the last item. Raises what the command failed to start with."""
        if self.forgotten:
            raise Conflict(f"exec {self.spec.exec_id} has ended and its output is no longer kept")
        offsets = {OutputStream.STDOUT: stdout_offset, OutputStream.STDERR: stderr_offset}
        while True:
            changed, ended = self._changed, self.done
            for stream, buffer in self._buffers.items():
                for chunk in _pieces(buffer.head_from(offsets[stream])):
                    offsets[stream] = chunk.offset + len(chunk.data)
                    yield Output(stream, chunk)
            if not ended:
                await changed.wait()
                continue
            if self._error is not None:
                raise self._error
            for stream, buffer in self._buffers.items():
                for chunk in _pieces(buffer.tail_from(offsets[stream])):
                    yield Output(stream, chunk)
            assert self._exited is not None
            yield self._exited
            return

    async def running(self) -> RunningCommand:
        """The started command, for stdin and signals. Raises Conflict when it has ended."""
        command = await asyncio.shield(self._started)
        if self.done:
            raise Conflict(f"exec {self.spec.exec_id} has ended")
        return command


def _pieces(chunk: Chunk | None) -> list[Chunk]:
    if chunk is None:
        return []
    starts = range(0, len(chunk.data), _CHUNK)
    return [Chunk(chunk.offset + start, chunk.data[start : start + _CHUNK]) for start in starts]


class ExecTable:
    """All execs of one sandbox."""

    def __init__(self, sandbox: HostedAgent, clock: Clock, on_end: Callable[[], None]) -> None:
        self._sandbox = sandbox
        self._clock = clock
        self._on_end = on_end
        self._execs: OrderedDict[str, Exec] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def start_or_find(self, spec: ExecSpec) -> Exec:
        """The exec of this id; started now if it is new.

        Raises:
            InvalidSpec: a field is wrong.
            Conflict: the id belongs to another command.
            QuotaExceeded: too many commands run.
        """
        spec.check()
        known = self._execs.get(spec.exec_id)
        if known is not None:
            if known.fingerprint != spec.fingerprint():
                raise Conflict(f"exec_id {spec.exec_id!r} belongs to another command; choose a new id")
            return known
        if len(self._tasks) >= _MAX_RUNNING:
            raise QuotaExceeded(f"{_MAX_RUNNING} commands run in this sandbox; wait for one to end", which="execs")
        exec_ = Exec(spec, self._clock)
        self._execs[spec.exec_id] = exec_
        task = asyncio.create_task(exec_.run(self._sandbox))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return exec_

    def find(self, exec_id: str) -> Exec:
        """Raises NotFound."""
        if exec_id not in self._execs:
            raise NotFound(f"exec {exec_id!r} was never started in this sandbox")
        return self._execs[exec_id]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_end()
        kept = [exec_ for exec_ in self._execs.values() if exec_.done and not exec_.forgotten]
        total = sum(exec_.kept_bytes for exec_ in kept)
        for exec_ in kept:
            if total <= _MAX_KEPT_BYTES and len(kept) <= _MAX_KEPT:
                return
            total -= exec_.kept_bytes
            exec_.forget_output()

    async def close(self) -> None:
        """Lets commands of an ended sandbox report their own end, and breaks off what does not."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_WAIT_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
