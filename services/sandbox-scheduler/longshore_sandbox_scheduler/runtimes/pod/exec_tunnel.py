"""The fallback where no pod address can be reached: gRPC through `pods/exec`.

One exec carries one gRPC connection, so a command costs no exec of its own, and its exit status comes from the agent,
not from the stream's end: a broken tunnel is a broken connection, which callers attach to again. Every byte passes API
server and kubelet, and this process: slower, and no way for many sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.runtime import RemoteAgent
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError

log = get_logger(__name__)

_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255
_CHUNK_BYTES = 64 * 1024
_KEPT_ERROR_BYTES = 2000
_HALF_CLOSE = "v5.channel.k8s.io"


@dataclass(eq=False)
class _Tunnel:
    """A local socket; each connection to it is one exec."""

    path: Path
    listening: socket.socket
    server: asyncio.Task[None] | None = None
    bridges: set[asyncio.Task[None]] = field(default_factory=set)


class ExecTunnels:
    """`AgentWays` through the API server."""

    runtime_name = "pod-exec"

    def __init__(self, api: KubeApi, namespace: str, container: str, command: Sequence[str]) -> None:
        """command: bridges stdin and stdout to the agent, in that container."""
        self._api = api
        self._namespace = namespace
        self._container = container
        self._command = tuple(command)
        # Only we may pass: who reaches the socket still needs a token, but need not try.
        self._folder = Path(tempfile.mkdtemp(prefix="longshore-tunnel-"))
        self._tunnels: dict[str, _Tunnel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def way_in(self, sandbox_id: str, instance: str, address: str) -> RemoteAgent:
        """A socket of this machine. Needs a running loop."""
        tunnel = self._tunnels.get(instance)
        if tunnel is None:
            tunnel = self._tunnels[instance] = self._listen(sandbox_id, instance)
        return RemoteAgent(f"unix:{tunnel.path}", direct=False)

    def _listen(self, sandbox_id: str, instance: str) -> _Tunnel:
        # Paths of sockets are short.
        path = self._folder / hashlib.sha256(instance.encode()).hexdigest()[:24]
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(os.fspath(path))
        listening.listen()
        listening.setblocking(False)
        tunnel = _Tunnel(path, listening)
        tunnel.server = asyncio.create_task(self._serve(tunnel, sandbox_id))
        return tunnel

    async def _serve(self, tunnel: _Tunnel, sandbox_id: str) -> None:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            bridge = asyncio.create_task(self._bridge(sandbox_id, reader, writer))
            tunnel.bridges.add(bridge)
            bridge.add_done_callback(tunnel.bridges.discard)

        server = await asyncio.start_unix_server(connected, sock=tunnel.listening)
        async with server:
            await server.serve_forever()

    async def _bridge(self, sandbox_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await self._api.exec_stream(self._namespace, sandbox_id, self._container, self._command)
        except KubeError as error:
            log.warning("no tunnel to a sandbox", sandbox_id=sandbox_id, error=error.message)
            await _close(writer)
            return
        try:
            await carry(stream, reader, writer)
        except (aiohttp.ClientError, OSError, BrokenTunnel) as error:
            log.info("a tunnel broke", sandbox_id=sandbox_id, error=str(error))
        finally:
            await _close(writer)
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await stream.close()

    def forget(self, instance: str) -> None:
        tunnel = self._tunnels.pop(instance, None)
        if tunnel is not None:
            task = asyncio.create_task(self._end(tunnel))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _end(self, tunnel: _Tunnel) -> None:
        tasks = [*tunnel.bridges, *([tunnel.server] if tunnel.server else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tunnel.listening.close()
        tunnel.path.unlink(missing_ok=True)

    async def close(self) -> None:
        for instance in list(self._tunnels):
            self.forget(instance)
        await asyncio.gather(*self._closing)
        shutil.rmtree(self._folder, ignore_errors=True)


class BrokenTunnel(Exception):
    """The exec ended by itself."""


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


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
