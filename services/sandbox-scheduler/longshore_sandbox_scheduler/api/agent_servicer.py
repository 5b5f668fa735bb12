"""longshore.agent.v1.AgentService for the local runtime: the token in the metadata says which sandbox is meant."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.execs import ExecSpec, Exited, Output
from longshore_sandbox_scheduler.domain.runtime import Command, OutputStream
from longshore_sandbox_scheduler.domain.scheduler import Live, Scheduler

_STREAMS = {OutputStream.STDOUT: agent_pb2.STREAM_STDOUT, OutputStream.STDERR: agent_pb2.STREAM_STDERR}
_DEFAULT_DOWNLOAD_BYTES = 64 * 1024 * 1024
_MAX_SIGNAL = 64


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Maps calls to the sandbox of their token."""

    def __init__(self, scheduler: Scheduler, runtime: str) -> None:
        self._scheduler = scheduler
        self._runtime = runtime

    def _sandbox(self, context: Any) -> Live:
        metadata = context.invocation_metadata() or ()
        given = next((str(value) for key, value in metadata if key == "authorization"), "")
        return self._scheduler.by_token(given.removeprefix("Bearer "))

    async def Exec(self, request: agent_pb2.ExecRequest, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        exec_ = self._sandbox(context).execs.start_or_find(_spec(request))
        async for item in exec_.attach(request.stdout_offset, request.stderr_offset):
            yield _output(item) if isinstance(item, Output) else _exited(item)

    async def WriteStdin(self, request: agent_pb2.WriteStdinRequest, context: Any) -> Any:
        running = await self._sandbox(context).execs.find(request.exec_id).running()
        await running.write_stdin(request.data, request.eof)
        return agent_pb2.WriteStdinResponse()

    async def Signal(self, request: agent_pb2.SignalRequest, context: Any) -> Any:
        if not 0 < request.signal <= _MAX_SIGNAL:
            raise InvalidSpec(f"signal {request.signal} does not exist", field="signal")
        running = await self._sandbox(context).execs.find(request.exec_id).running()
        await running.send_signal(request.signal)
        return agent_pb2.SignalResponse()

    async def KillAll(self, request: agent_pb2.KillAllRequest, context: Any) -> Any:
        return agent_pb2.KillAllResponse(killed=await self._sandbox(context).running.kill_all())

    async def Upload(self, request_iterator: AsyncIterator[agent_pb2.UploadRequest], context: Any) -> Any:
        running = self._sandbox(context).running
        header: agent_pb2.UploadHeader | None = None
        total = hashlib.sha256()
        with tempfile.TemporaryFile() as file:
            async for part in request_iterator:
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
                size = await running.upload_tar(header.path, file, header.replace)
            else:
                size = await running.upload_file(header.path, file, header.mode)
        return agent_pb2.UploadResponse(bytes=size)

    async def Download(
        self, request: agent_pb2.DownloadRequest, context: Any
    ) -> AsyncIterator[agent_pb2.DownloadResponse]:
        if request.max_bytes < 0:
            raise InvalidSpec(f"max_bytes is {request.max_bytes}; it must not be negative", field="max_bytes")
        running = self._sandbox(context).running
        total = hashlib.sha256()
        async for data in running.download(request.path, request.tar, request.max_bytes or _DEFAULT_DOWNLOAD_BYTES):
            total.update(data)
            yield agent_pb2.DownloadResponse(data=data)
        yield agent_pb2.DownloadResponse(digest="sha256:" + total.hexdigest())

    async def Stat(self, request: agent_pb2.StatRequest, context: Any) -> Any:
        info = await self._sandbox(context).running.stat(request.path)
        return agent_pb2.StatResponse(exists=info.exists, kind=info.kind, size=info.size, mode=info.mode)

    async def Remove(self, request: agent_pb2.RemoveRequest, context: Any) -> Any:
        await self._sandbox(context).running.remove(request.paths)
        return agent_pb2.RemoveResponse()

    async def Health(self, request: agent_pb2.HealthRequest, context: Any) -> Any:
        sandbox_id = self._sandbox(context).sandbox.sandbox_id
        return agent_pb2.HealthResponse(sandbox_id=sandbox_id, runtime=self._runtime)


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
