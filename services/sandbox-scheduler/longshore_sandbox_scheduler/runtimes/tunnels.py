"""Ways to agents that no network reaches: a socket of this machine each, whose connections somebody carries inside."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.runtime import RemoteAgent

log = get_logger(__name__)


class BrokenTunnel(Exception):
    """The far side could not be reached, or ended by itself."""


Carry = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Carries one connection to the agent of a sandbox (its id) until it ends. Raises BrokenTunnel, OSError."""


@dataclass(eq=False)
class _Tunnel:
    """A local socket; each connection to it is carried by itself."""

    path: Path
    listening: socket.socket
    server: asyncio.Task[None] | None = None
    bridges: set[asyncio.Task[None]] = field(default_factory=set)


class Tunnels:
    """One local socket per incarnation of a sandbox."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        # Only we may pass: who reaches the socket still needs a token, but need not try.
        self._folder: Path | None = None
        self._tunnels: dict[str, _Tunnel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def way_in(self, sandbox_id: str, instance: str, address: str = "") -> RemoteAgent:
        """A socket of this machine; the address of the agent does not matter. Needs a running loop."""
        tunnel = self._tunnels.get(instance)
        if tunnel is None:
            tunnel = self._tunnels[instance] = self._listen(sandbox_id, instance)
        return RemoteAgent(f"unix:{tunnel.path}", direct=False)

    def _listen(self, sandbox_id: str, instance: str) -> _Tunnel:
        # Paths of sockets are short.
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="longshore-tunnel-"))
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
            await self._carry(sandbox_id, reader, writer)
        except (OSError, BrokenTunnel) as error:
            log.info("a tunnel broke", sandbox_id=sandbox_id, error=str(error))
        finally:
            await close_writer(writer)

    def forget(self, instance: str) -> None:
        """That sandbox is gone. Unknown: no effect."""
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
        """Ends all."""
        for instance in list(self._tunnels):
            self.forget(instance)
        await asyncio.gather(*self._closing)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Closes it, also when the other side has gone."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
