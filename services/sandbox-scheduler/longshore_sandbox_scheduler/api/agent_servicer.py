"""longshore.agent.v1.AgentService: the token in the metadata says which sandbox is meant.

Sandboxes whose agent this process hosts are served here; to an agent inside a sandbox the call is relayed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.api.agent_relay import AgentRelay
from longshore_sandbox_scheduler.domain.execs import ExecSpec, ExecTable, Exited, Output
from longshore_sandbox_scheduler.domain.runtime import Command, HostedAgent, OutputStream, RemoteAgent
from longshore_sandbox_scheduler.domain.scheduler import Scheduler

_STREAMS = {OutputStream.STDOUT: agent_pb2.STREAM_STDOUT, OutputStream.STDERR: agent_pb2.STREAM_STDERR}
_DEFAULT_DOWNLOAD_BYTES = 64 * 1024 * 1024
_MAX_SIGNAL = 64


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Maps calls to the sandbox of their token."""

    def __init__(self, scheduler: Scheduler, runtime: str, channels: AgentChannels) -> None:
        self._scheduler = scheduler
        self._runtime = runtime
        self._channels = channels

    async def _way_in(self, context: Any) -> Hosted | AgentRelay:
        metadata = context.invocation_metadata() or ()
        given = next((str(value) for key, value in metadata if key == "authorization"), "")
        live = await self._scheduler.by_token(given.removeprefix("Bearer "))
        access = live.running.access
        if isinstance(access, RemoteAgent):
            await self._channels.trim()
            return AgentRelay(self._channels, access.address, given)
        assert live.execs is not None
        return Hosted(live.sandbox.sandbox_id, live.sandbox.instance, access, live.execs)

    async def Exec(self, request: agent_pb2.ExecRequest, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        way = await self._way_in(context)
        stream = way.exec(request, context) if isinstance(way, AgentRelay) else _exec(way, request)
        async for message in stream:
            yield message

    async def WriteStdin(self, request: agent_pb2.WriteStdinRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("WriteStdin", request, context)
        running = await way.execs.find(request.exec_id).running()
        await running.write_stdin(request.data, request.eof)
        return agent_pb2.WriteStdinResponse()

    async def Signal(self, request: agent_pb2.SignalRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("Signal", request, context)
        if not 0 < request.signal <= _MAX_SIGNAL:
            raise InvalidSpec(f"signal {request.signal} does not exist", field="signal")
        running = await way.execs.find(request.exec_id).running()
        await running.send_signal(request.signal)
        return agent_pb2.SignalResponse()

    async def KillAll(self, request: agent_pb2.KillAllRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("KillAll", request, context)
        return agent_pb2.KillAllResponse(killed=await way.agent.kill_all())

    async def Upload(self, request_iterator: AsyncIterator[agent_pb2.UploadRequest], context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.upload(request_iterator, context)
        return await _upload(way.agent, request_iterator)

    async def Download(
        self, request: agent_pb2.DownloadRequest, context: Any
    ) -> AsyncIterator[agent_pb2.DownloadResponse]:
        way = await self._way_in(context)
        stream = way.download(request, context) if isinstance(way, AgentRelay) else _download(way.agent, request)
        async for message in stream:
            yield message

    async def Stat(self, request: agent_pb2.StatRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("Stat", request, context)
        info = await way.agent.stat(request.path)
        return agent_pb2.StatResponse(exists=info.exists, kind=info.kind, size=info.size, mode=info.mode)

    async def Remove(self, request: agent_pb2.RemoveRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("Remove", request, context)
        await way.agent.remove(request.paths)
        return agent_pb2.RemoveResponse()

    async def Health(self, request: agent_pb2.HealthRequest, context: Any) -> Any:
        way = await self._way_in(context)
        if isinstance(way, AgentRelay):
            return await way.unary("Health", request, context)
        return agent_pb2.HealthResponse(sandbox_id=way.sandbox_id, runtime=self._runtime, instance=way.instance)


@dataclass(frozen=True)
class Hosted:
    """A sandbox whose agent is this process."""

    sandbox_id: str
    instance: str
    agent: HostedAgent
    execs: ExecTable


async def _exec(way: Hosted, request: agent_pb2.ExecRequest) -> AsyncIterator[agent_pb2.ExecResponse]:
    for name, offset in (("stdout_offset", request.stdout_offset), ("stderr_offset", request.stderr_offset)):
        if offset < 0:
            raise InvalidSpec(f"{name} is {offset}; it must not be negative", field=name)
    exec_ = way.execs.start_or_find(_spec(request))
    async for item in exec_.attach(request.stdout_offset, request.stderr_offset):
        yield _output(item) if isinstance(item, Output) else _exited(item)


async def _upload(agent: HostedAgent, requests: AsyncIterator[agent_pb2.UploadRequest]) -> agent_pb2.UploadResponse:
    header: agent_pb2.UploadHeader | None = None
    total = hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        async for part in requests:
            if part.HasField("header"):
                if header is not None:
                    raise InvalidSpec("an upload has one header", field="header")
                header = part.header
            elif header is None:
                raise InvalidSpec("the first message of an upload is its header", field="header")
            else:
                total.update(part.data)
                file.write(part.data)
        if header is None:
            raise InvalidSpec("the upload is empty; its first message is a header", field="header")
        _check_digest(header, "sha256:" + total.hexdigest())
        file.flush()
        if header.tar:
            size = await agent.upload_tar(header.path, file, header.replace)
        else:
            size = await agent.upload_file(header.path, file, header.mode)
    return agent_pb2.UploadResponse(bytes=size)


async def _download(
    agent: HostedAgent, request: agent_pb2.DownloadRequest
) -> AsyncIterator[agent_pb2.DownloadResponse]:
    if request.max_bytes < 0:
        raise InvalidSpec(f"max_bytes is {request.max_bytes}; it must not be negative", field="max_bytes")
    total = hashlib.sha256()
    async for data in agent.download(request.path, request.tar, request.max_bytes or _DEFAULT_DOWNLOAD_BYTES):
        total.update(data)
        yield agent_pb2.DownloadResponse(data=data)
    yield agent_pb2.DownloadResponse(digest="sha256:" + total.hexdigest())


def _check_digest(header: agent_pb2.UploadHeader, found: str) -> None:
    if header.digest != found:
        raise InvalidSpec(
            f"upload to {header.path}: the data has digest {found}, the header says {header.digest or 'nothing'}; "
            "nothing was changed",
            field="digest",
        )


def _spec(request: agent_pb2.ExecRequest) -> ExecSpec:
    command = Command(
        argv=tuple(request.command),
        env=dict(request.env),
        cwd=request.cwd,
        user=request.user,
        stdin=request.stdin,
        stdin_open=request.stdin_open,
    )
    return ExecSpec(request.exec_id, command, request.timeout_s, request.stdout_cap, request.stderr_cap)


def _output(item: Output) -> agent_pb2.ExecResponse:
    output = agent_pb2.Output(stream=_STREAMS[item.stream], offset=item.chunk.offset, data=item.chunk.data)
    return agent_pb2.ExecResponse(output=output)


def _exited(item: Exited) -> agent_pb2.ExecResponse:
    return agent_pb2.ExecResponse(
        exited=agent_pb2.Exited(
            exit_code=item.end.exit_code,
            signal=item.end.signal,
            timed_out=item.timed_out,
            oom_killed=item.end.oom_killed,
            stdout_bytes=item.stdout_bytes,
            stderr_bytes=item.stderr_bytes,
            stdout_truncated=item.stdout_truncated,
            stderr_truncated=item.stderr_truncated,
            duration_s=item.duration_s,
        )
    )
