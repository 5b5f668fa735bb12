"""Client of longshore.agent.v1: commands and files inside one sandbox.

Used by whoever claims sandboxes (rollout worker, verifier, probes). All sandboxes of one address share a channel; the
sandbox is chosen by the token that goes with each call.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, BinaryIO

import grpc.aio
from prometheus_client import Histogram

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_session import EXEC_GRACE_S, ExecSession
from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.grpc_client import mapped, mapped_stream, open_channel
from longshore_common.ids import new_id
from longshore_common.sandbox_exec import Captured, ExecResult, FileStat

_CHUNK_BYTES = 1024 * 1024
_TRANSFER_TIMEOUT_S = 120.0
_SLOWEST_BYTES_PER_S = 1024 * 1024
"""A transfer slower than this beyond its first minutes is given up."""
_ATTACH_ATTEMPTS = 3

EXEC_OVERHEAD = Histogram(
    "longshore_sandbox_exec_overhead_seconds",
    "Round trip of a command in a sandbox beyond its own run time, as its caller sees it, seconds",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30),
)


class _Stream:
    """Collects one output stream by offset, so that an attach continues where the last call broke off."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._gap = False
        self.offset = 0

    def add(self, offset: int, data: bytes) -> None:
        if offset < self.offset:
            data, offset = data[self.offset - offset :], self.offset
        if not data:
            return
        self._gap = self._gap or offset > self.offset
        (self._tail if self._gap else self._head).extend(data)
        self.offset = offset + len(data)

    def captured(self, total: int) -> Captured:
        return Captured(bytes(self._head), bytes(self._tail), max(total, len(self._head) + len(self._tail)))


class AgentChannels:
    """One gRPC channel per agent address. The least recently used one is closed beyond max_channels."""

    def __init__(self, max_channels: int = 1024) -> None:
        self._channels: OrderedDict[str, tuple[grpc.aio.Channel, Any]] = OrderedDict()
        self._max = max_channels

    def client(self, address: str, token: str) -> AgentClient:
        """A client for the sandbox of this token."""
        return AgentClient(self.stub(address), token)

    def stub(self, address: str) -> Any:
        """The bare stub of an address."""
        if address not in self._channels:
            channel = open_channel(address)
            self._channels[address] = (channel, agent_pb2_grpc.AgentServiceStub(channel))
        self._channels.move_to_end(address)
        return self._channels[address][1]

    async def trim(self) -> None:
        """Closes channels beyond the bound; call it now and then."""
        while len(self._channels) > self._max:
            _, (channel, _) = self._channels.popitem(last=False)
            await channel.close(grace=60)

    async def close(self) -> None:
        """Closes all channels."""
        while self._channels:
            _, (channel, _) = self._channels.popitem()
            await channel.close()


class AgentClient:
    """`sandbox_exec.SandboxAgent` over gRPC."""

    def __init__(self, stub: Any, token: str) -> None:
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {token}"),)

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        output_cap: int = 0,
    ) -> ExecResult:
        """Runs argv once and waits for its end; a broken stream is attached again by exec_id, never run again.

        Raises:
            Unavailable: the stream ended without an exit status.
            LongshoreError: what the agent raised.
        """
        request = agent_pb2.ExecRequest(
            exec_id=new_id("exec"), command=command, env=env or {}, cwd=cwd, user=user, timeout_s=timeout_s,
            stdout_cap=output_cap, stderr_cap=output_cap,
        )  # fmt: skip
        streams = {agent_pb2.STREAM_STDOUT: _Stream(), agent_pb2.STREAM_STDERR: _Stream()}
        began = time.perf_counter()
        for attempt in range(1, _ATTACH_ATTEMPTS + 1):
            request.stdout_offset = streams[agent_pb2.STREAM_STDOUT].offset
            request.stderr_offset = streams[agent_pb2.STREAM_STDERR].offset
            try:
                result = await self._attach(request, streams)
                EXEC_OVERHEAD.observe(max(0.0, time.perf_counter() - began - result.duration_s))
                return result
            except LongshoreError as error:
                if not error.retryable or attempt == _ATTACH_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _attach(self, request: agent_pb2.ExecRequest, streams: dict[Any, _Stream]) -> ExecResult:
        call = self._stub.Exec(request, metadata=self._metadata, timeout=request.timeout_s + EXEC_GRACE_S)
        async for message in mapped_stream(call):
            if message.HasField("output"):
                streams[message.output.stream].add(message.output.offset, message.output.data)
            elif message.HasField("exited"):
                return _result(message.exited, streams)
        raise Unavailable(f"the agent ended exec {request.exec_id} without an exit status; the sandbox may be lost")

    def session(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        output_cap: int = 0,
        stdin_open: bool = False,
    ) -> ExecSession:
        """argv to be run once and read while it runs; it starts when its output is read."""
        request = agent_pb2.ExecRequest(
            exec_id=new_id("exec"), command=command, env=env or {}, cwd=cwd, user=user, timeout_s=timeout_s,
            stdout_cap=output_cap, stderr_cap=output_cap, stdin_open=stdin_open,
        )  # fmt: skip
        return ExecSession(self._stub, self._metadata, request)

    async def kill_all(self) -> int:
        answer = await self._stub.KillAll(agent_pb2.KillAllRequest(), metadata=self._metadata)
        return int(answer.killed)

    async def remove(self, paths: Sequence[str]) -> None:
        await self._stub.Remove(agent_pb2.RemoveRequest(paths=paths), metadata=self._metadata)

    async def stat(self, path: str) -> FileStat:
        answer = await self._stub.Stat(agent_pb2.StatRequest(path=path), metadata=self._metadata)
        return FileStat(answer.exists, answer.kind, answer.size, answer.mode)

    async def upload(self, path: str, data: bytes, *, tar: bool = False, replace: bool = False, mode: int = 0) -> None:
        await self.upload_from(path, io.BytesIO(data), tar=tar, replace=replace, mode=mode)

    async def upload_from(
        self,
        path: str,
        file: BinaryIO,
        *,
        tar: bool = False,
        replace: bool = False,
        mode: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Like `upload`, from an open file, read twice; progress hears the bytes sent so far. Gives their number."""
        digest, size = await asyncio.to_thread(_digest, file)
        header = agent_pb2.UploadHeader(path=path, digest=digest, tar=tar, mode=mode, replace=replace)
        timeout_s = _TRANSFER_TIMEOUT_S + size / _SLOWEST_BYTES_PER_S
        call = self._stub.Upload(_parts(header, file, progress), metadata=self._metadata, timeout=timeout_s)
        await mapped(call)
        return size

    async def download(self, path: str, *, max_bytes: int, tar: bool = False) -> bytes:
        """The bytes at path. Raises Unavailable when the stream broke off or the digest does not match."""
        file = io.BytesIO()
        await self.download_to(path, file, max_bytes=max_bytes, tar=tar)
        return file.getvalue()

    async def download_to(
        self,
        path: str,
        file: BinaryIO,
        *,
        max_bytes: int,
        tar: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Like `download`, into an open file, whose content is good only when this returns. Gives the bytes."""
        request = agent_pb2.DownloadRequest(path=path, tar=tar, max_bytes=max_bytes)
        timeout_s = _TRANSFER_TIMEOUT_S + max_bytes / _SLOWEST_BYTES_PER_S
        call = self._stub.Download(request, metadata=self._metadata, timeout=timeout_s)
        total, size, stated = hashlib.sha256(), 0, ""
        async for message in mapped_stream(call):
            file.write(message.data)
            total.update(message.data)
            size += len(message.data)
            stated = message.digest or stated
            if progress is not None:
                progress(size)
        if stated != "sha256:" + total.hexdigest():
            raise Unavailable(f"the download of {path} broke off after {size} bytes; try again")
        return size


def _digest(file: BinaryIO) -> tuple[str, int]:
    file.seek(0)
    total, size = hashlib.sha256(), 0
    while data := file.read(_CHUNK_BYTES):
        total.update(data)
        size += len(data)
    return "sha256:" + total.hexdigest(), size


async def _parts(
    header: agent_pb2.UploadHeader, file: BinaryIO, progress: Callable[[int], None] | None
) -> AsyncIterator[agent_pb2.UploadRequest]:
    yield agent_pb2.UploadRequest(header=header)
    file.seek(0)
    sent = 0
    while data := file.read(_CHUNK_BYTES):
        yield agent_pb2.UploadRequest(data=data)
        sent += len(data)
        if progress is not None:
            progress(sent)


def _result(exited: agent_pb2.Exited, streams: dict[Any, _Stream]) -> ExecResult:
    return ExecResult(
        exit_code=exited.exit_code,
        stdout=streams[agent_pb2.STREAM_STDOUT].captured(exited.stdout_bytes),
        stderr=streams[agent_pb2.STREAM_STDERR].captured(exited.stderr_bytes),
        signal=exited.signal,
        timed_out=exited.timed_out,
        oom_killed=exited.oom_killed,
        duration_s=exited.duration_s,
    )
