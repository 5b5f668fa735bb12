"""The fallback where no pod address can be reached: gRPC through `pods/exec`.

One exec carries one gRPC connection, so a command costs no exec of its own, and its exit status comes from the agent,
not from the stream's end: a broken tunnel is a broken connection, which callers attach to again. Every byte passes API
server and kubelet, and this process: slower, and no way for many sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import aiohttp

from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.tunnels import BrokenTunnel, Tunnels

_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255
_CHUNK_BYTES = 64 * 1024
_KEPT_ERROR_BYTES = 2000
_HALF_CLOSE = "v5.channel.k8s.io"


class ExecTunnels(Tunnels):
    """`AgentWays` through the API server."""

    runtime_name = "pod-exec"

    def __init__(self, api: KubeApi, namespace: str, container: str, command: Sequence[str]) -> None:
        """command: bridges stdin and stdout to the agent, in that container."""

        async def carry_one(sandbox_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                stream = await api.exec_stream(namespace, sandbox_id, container, command)
            except KubeError as error:
                raise BrokenTunnel(error.message) from error
            try:
                await carry(stream, reader, writer)
            except aiohttp.ClientError as error:
                raise BrokenTunnel(str(error)) from error
            finally:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    await stream.close()

        super().__init__(carry_one)


async def carry(
    stream: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carries bytes both ways until either side has ended.

    Raises:
        BrokenTunnel: the program in the container ended with an error, with what it said.
    """
    up = asyncio.create_task(_carry_up(stream, reader))
    down = asyncio.create_task(_carry_down(stream, writer))
    try:
        done, _ = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if down not in done and stream.protocol == _HALF_CLOSE:
            # Our side has nothing more to say; theirs may.
            await down
        for task in (up, down):
            if task.done():
                task.result()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _carry_up(stream: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await stream.send_bytes(bytes((_STDIN,)) + data)
    if stream.protocol == _HALF_CLOSE:
        await stream.send_bytes(bytes((_CLOSE, _STDIN)))


async def _carry_down(stream: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    said = bytearray()
    handlers: dict[int, Callable[[bytes], None]] = {_STDOUT: writer.write, _STDERR: said.extend}
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == _ERROR and b'"Success"' not in data:
            detail = bytes(said[:_KEPT_ERROR_BYTES] or data[:_KEPT_ERROR_BYTES]).decode(errors="replace")
            raise BrokenTunnel(detail.strip())
        handler = handlers.get(channel)
        if handler is not None and data:
            handler(data)
            del said[_KEPT_ERROR_BYTES:]
            await writer.drain()
