"""A command in a bubblewrap sandbox, from the scheduler's side."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from longshore_common.errors import Conflict, Internal, InvalidSpec, LongshoreError, Unavailable
from longshore_sandbox_scheduler.domain.runtime import Command, CommandEnd, OutputSink, OutputStream
from longshore_sandbox_scheduler.runtimes.bubblewrap import pipes
from longshore_sandbox_scheduler.runtimes.bubblewrap.link import LauncherLink

_KILLED = 9


class BubblewrapCommand:
    """`domain.runtime.RunningCommand`."""

    def __init__(
        self,
        link: LauncherLink,
        sandbox_id: str,
        oom_kills: Callable[[], int],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """settled: returns when it is known whether the sandbox has ended."""
        self._link = link
        self._sandbox_id = sandbox_id
        self._oom_kills = oom_kills
        self._settled = settled
        self._oom_before = oom_kills()
        self._supervisor = 0
        self._stdin = -1
        self._stdin_lock = asyncio.Lock()
        self._feeding: asyncio.Task[None] | None = None
        self._drains: list[pipes.Drain] = []
        self._status: asyncio.Task[bytes] | None = None

    async def start(self, command: Command, request: dict[str, Any], sink: OutputSink) -> None:
        """Sends the request with its pipes. Raises Unavailable."""
        theirs: list[int] = []
        ours: list[int] = []
        try:
            self._open_pipes(command, ours, theirs)
            answer = await self._link.request({**request, "op": "exec", "sandbox": self._sandbox_id}, theirs)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._supervisor = answer["pid"]
        self._adopt(command, ours, sink)

    def _open_pipes(self, command: Command, ours: list[int], theirs: list[int]) -> None:
        if command.stdin or command.stdin_open:
            own, other = pipes.make_pipe(ours_reads=False)
            ours.append(own)
            theirs.append(other)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for enlarged in (True, True, False):
            own, other = pipes.make_pipe(ours_reads=True)
            ours.append(own)
            theirs.append(other)
            if enlarged:
                pipes.enlarge(own)

    def _adopt(self, command: Command, ours: list[int], sink: OutputSink) -> None:
        if len(ours) == 4:
            self._stdin = ours.pop(0)
            self._feeding = asyncio.create_task(self._feed(command.stdin, eof=not command.stdin_open))
        stdout, stderr, status = ours
        self._drains = [
            pipes.Drain(stdout, lambda data: sink(OutputStream.STDOUT, data)),
            pipes.Drain(stderr, lambda data: sink(OutputStream.STDERR, data)),
        ]
        self._status = asyncio.create_task(pipes.read_to_end(status))

    async def _feed(self, data: bytes, eof: bool) -> None:
        async with self._stdin_lock:
            if self._stdin < 0:
                return
            try:
                await pipes.write_all(self._stdin, data)
            except BrokenPipeError:
                eof = True
            if eof:
                self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    async def wait(self) -> CommandEnd:
        """See the protocol."""
        assert self._status is not None
        raw = await asyncio.shield(self._status)
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        self._close_stdin()
        if not raw:
            await self._settled()
        for drain in self._drains:
            drain.flush()
            drain.discard_rest()
        return self._end(raw)

    def _end(self, raw: bytes) -> CommandEnd:
        oom = self._oom_kills() > self._oom_before
        if not raw:
            # The supervisor was killed: by kill_all, by the command itself, or with its whole sandbox.
            return CommandEnd(-1, _KILLED, oom)
        answer = json.loads(raw)
        if "error" in answer:
            raise _start_error(answer["error"], answer["message"])
        return CommandEnd(answer["exit_code"], answer["signal"], oom)

    async def write_stdin(self, data: bytes, eof: bool) -> None:
        """See the protocol."""
        if self._feeding is not None and not self._feeding.done():
            await asyncio.wait({self._feeding})
        if self._stdin < 0:
            raise Conflict("stdin of this command is closed; start it with stdin_open to write to it")
        await self._feed(data, eof)

    async def send_signal(self, signum: int) -> None:
        """See the protocol."""
        await self._link.notify({"op": "signal", "pid": self._supervisor, "signal": signum})

    async def kill_tree(self) -> None:
        """See the protocol; falls back to killing all of the sandbox's processes when they fork too fast."""
        answer = await run_helper(self._link, {"op": "kill_tree", "sandbox": self._sandbox_id, "pid": self._supervisor})
        if not answer.get("complete"):
            await run_helper(self._link, {"op": "kill_all", "sandbox": self._sandbox_id})


def _start_error(kind: str, message: str) -> LongshoreError:
    if kind in ("user", "cwd"):
        return InvalidSpec(message, field=kind)
    return Unavailable(message)


async def run_helper(link: LauncherLink, request: dict[str, Any], data: int | None = None) -> dict[str, Any]:
    """Runs one helper of the launcher to its end; its JSON answer.

    Raises:
        Unavailable: the sandbox ended, or the helper could not run.
    """
    ours, theirs = pipes.make_pipe(ours_reads=True)
    try:
        await link.request(request, [theirs] if data is None else [theirs, data])
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    raw = await pipes.read_to_end(ours)
    if not raw:
        raise Unavailable("the sandbox ended during the operation")
    answer = json.loads(raw)
    if not isinstance(answer, dict):
        raise Internal("the helper's answer is not an object")
    if answer.get("error") == "start":
        raise Unavailable(answer["message"])
    return answer
