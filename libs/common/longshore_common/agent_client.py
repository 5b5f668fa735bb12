"""Client of longshore.agent.v1: commands and files inside one sandbox.

Used by whoever claims sandboxes (rollout worker, verifier, probes). All sandboxes of one address share a channel; the
sandbox is chosen by the token that goes with each call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc.aio

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.digests import digest_bytes
from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.grpc_client import mapped, mapped_stream, open_channel
from longshore_common.ids import new_id
from longshore_common.sandbox_exec import Captured, ExecResult, FileStat

_CHUNK_BYTES = 1024 * 1024
_TRANSFER_TIMEOUT_S = 120.0
# What a command may take beyond its own timeout: kill of the tree, the drain of its output, the way back.
_EXEC_GRACE_S = 30.0
_ATTACH_ATTEMPTS = 3


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
        for attempt in range(1, _ATTACH_ATTEMPTS + 1):
            request.stdout_offset = streams[agent_pb2.STREAM_STDOUT].offset
            request.stderr_offset = streams[agent_pb2.STREAM_STDERR].offset
            try:
                return await self._attach(request, streams)
            except LongshoreError as error:
                if not error.retryable or attempt == _ATTACH_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _attach(self, request: agent_pb2.ExecRequest, streams: dict[Any, _Stream]) -> ExecResult:
        call = self._stub.Exec(request, metadata=self._metadata, timeout=request.timeout_s + _EXEC_GRACE_S)
        async for message in mapped_stream(call):
            if message.HasField("output"):
                streams[message.output.stream].add(message.output.offset, message.output.data)
            elif message.HasField("exited"):
                return _result(message.exited, streams)
        raise Unavailable(f"the agent ended exec {request.exec_id} without an exit status; the sandbox may be lost")

    async def kill_all(self) -> int:
        answer = await self._stub.KillAll(agent_pb2.KillAllRequest(), metadata=self._metadata)
        return int(answer.killed)

    async def remove(self, paths: Sequence[str]) -> None:
        await self._stub.Remove(agent_pb2.RemoveRequest(paths=paths), metadata=self._metadata)

    async def stat(self, path: str) -> FileStat:
        answer = await self._stub.Stat(agent_pb2.StatRequest(path=path), metadata=self._metadata)
        return FileStat(answer.exists, answer.kind, answer.size, answer.mode)

    async def upload(self, path: str, data: bytes, *, tar: bool = False, replace: bool = False, mode: int = 0) -> None:
        header = agent_pb2.UploadHeader(path=path, digest=digest_bytes(data), tar=tar, mode=mode, replace=replace)
        call = self._stub.Upload(_parts(header, data), metadata=self._metadata, timeout=_TRANSFER_TIMEOUT_S)
        await mapped(call)

    async def download(self, path: str, *, max_bytes: int, tar: bool = False) -> bytes:
        """The bytes at path. Raises Unavailable when the stream broke off or the digest does not match."""
        request = agent_pb2.DownloadRequest(path=path, tar=tar, max_bytes=max_bytes)
        data, stated = bytearray(), ""
        call = self._stub.Download(request, metadata=self._metadata, timeout=_TRANSFER_TIMEOUT_S)
        async for message in mapped_stream(call):
            data.extend(message.data)
            stated = message.digest or stated
        content = bytes(data)
        if stated != digest_bytes(content):
            raise Unavailable(f"the download of {path} broke off after {len(content)} bytes; try again")
        return content


async def _parts(header: agent_pb2.UploadHeader, data: bytes) -> AsyncIterator[agent_pb2.UploadRequest]:
    yield agent_pb2.UploadRequest(header=header)
    for start in range(0, len(data), _CHUNK_BYTES):
        yield agent_pb2.UploadRequest(data=data[start : start + _CHUNK_BYTES])


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
