"""One command inside a sandbox whose output is read while it runs, with stdin and signals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from longshore.agent.v1 import agent_pb2
from longshore_common.errors import LongshoreError, NotFound, Unavailable
from longshore_common.grpc_client import mapped_stream

EXEC_GRACE_S = 30.0
"""What a command may take beyond its own timeout: kill of the tree, the drain of its output, the way back."""
_ATTACH_ATTEMPTS = 5
_ATTACH_PAUSE_S = 0.2
_START_WAIT_S = 10.0
_START_PAUSE_S = 0.02


@dataclass(frozen=True)
class OutputPiece:
    """Raw bytes of one stream; left_out counts the bytes that the agent dropped right before them."""

    stderr: bool
    data: bytes
    left_out: int


@dataclass(frozen=True)
class ExecEnd:
    """How the command ended. status is the exit status as a shell states it; duration in seconds."""

    status: int
    signal: int
    timed_out: bool
    oom_killed: bool
    duration_s: float


class ExecSession:
    """A command that runs once, however often the connection breaks. Read `output` to its end, then `end`."""

    def __init__(self, stub: Any, metadata: Any, request: agent_pb2.ExecRequest) -> None:
        self._stub = stub
        self._metadata = metadata
        self._request = request
        self._offsets = {agent_pb2.STREAM_STDOUT: 0, agent_pb2.STREAM_STDERR: 0}
        self._deadline = time.monotonic() + request.timeout_s + EXEC_GRACE_S
        self._end: ExecEnd | None = None

    @property
    def exec_id(self) -> str:
        """Its name inside the sandbox."""
        return self._request.exec_id

    @property
    def end(self) -> ExecEnd:
        """Known once `output` is read to its end."""
        assert self._end is not None, "output is not read to its end"
        return self._end

    def _left_s(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    async def output(self) -> AsyncIterator[OutputPiece]:
        """What the command writes, as it comes; a broken connection continues where it broke off.

        Raises:
            Unavailable: the agent is out of reach, or the sandbox is gone.
            LongshoreError: what the agent raised, e.g. that the command cannot be started.
        """
        failures = 0
        while self._end is None:
            try:
                async for piece in self._attached():
                    failures = 0
                    yield piece
            except LongshoreError as error:
                failures += 1
                if not error.retryable or failures == _ATTACH_ATTEMPTS:
                    raise
                await asyncio.sleep(_ATTACH_PAUSE_S * failures)

    async def _attached(self) -> AsyncIterator[OutputPiece]:
        request = self._request
        request.stdout_offset = self._offsets[agent_pb2.STREAM_STDOUT]
        request.stderr_offset = self._offsets[agent_pb2.STREAM_STDERR]
        call = self._stub.Exec(request, metadata=self._metadata, timeout=self._left_s())
        async for message in mapped_stream(call):
            if message.HasField("exited"):
                self._end = _end(message.exited)
                return
            piece = self._piece(message.output)
            if piece is not None:
                yield piece
        raise Unavailable(f"the agent ended exec {self.exec_id} without an exit status; the sandbox may be lost")

    def _piece(self, output: agent_pb2.Output) -> OutputPiece | None:
        seen = self._offsets[output.stream]
        data = output.data[max(0, seen - output.offset) :]
        if not data:
            return None
        self._offsets[output.stream] = output.offset + len(output.data)
        return OutputPiece(output.stream == agent_pb2.STREAM_STDERR, data, max(0, output.offset - seen))

    async def write_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Feeds the command; returns when it has taken the bytes. Raises Conflict when it reads no more."""
        request = agent_pb2.WriteStdinRequest(exec_id=self.exec_id, data=data, eof=eof)
        await self._when_started(
            lambda: self._stub.WriteStdin(request, metadata=self._metadata, timeout=self._left_s())
        )

    async def signal(self, number: int) -> None:
        """Signals the command itself. Raises Conflict when it has ended."""
        request = agent_pb2.SignalRequest(exec_id=self.exec_id, signal=number)
        await self._when_started(lambda: self._stub.Signal(request, metadata=self._metadata))

    async def _when_started(self, call: Callable[[], Awaitable[Any]]) -> None:
        """The agent may hear of stdin before it has heard of the command."""
        until = time.monotonic() + _START_WAIT_S
        while True:
            try:
                await call()
                return
            except NotFound:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_START_PAUSE_S)


def _end(exited: agent_pb2.Exited) -> ExecEnd:
    status = 128 + exited.signal if exited.exit_code < 0 else exited.exit_code
    return ExecEnd(status, exited.signal, exited.timed_out, exited.oom_killed, exited.duration_s)
