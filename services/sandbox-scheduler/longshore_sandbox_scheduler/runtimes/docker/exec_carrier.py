"""Carries a gRPC connection to the agent through an exec of the engine: also where a container has no network.

One exec per connection, not per command: exit statuses come from the agent, and a broken tunnel is a broken connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError, RawStream
from longshore_sandbox_scheduler.runtimes.tunnels import BrokenTunnel, close_writer

_STDOUT = 1
_HEAD = 8
_CHUNK_BYTES = 64 * 1024
_KEPT_ERROR_BYTES = 2000


class ExecCarrier:
    """`tunnels.Carry`, by container name. command: bridges stdin and stdout to the agent."""

    def __init__(self, api: EngineApi, command: Sequence[str]) -> None:
        self._api = api
        self._command = list(command)

    async def __call__(self, sandbox_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await self._exec(sandbox_id)
        except EngineError as error:
            raise BrokenTunnel(error.message) from error
        try:
            await carry(stream, reader, writer)
        finally:
            await close_writer(stream.writer)

    async def _exec(self, container: str) -> RawStream:
        wanted = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "User": "0:0",
            "Cmd": self._command,
        }
        made = await self._api.call("POST", f"/containers/{container}/exec", body=wanted)
        return await self._api.upgrade(f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})


async def carry(stream: RawStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries bytes both ways until either side has ended.

    Raises:
        BrokenTunnel: the program in the container said an error.
    """
    up = asyncio.create_task(_carry_up(stream.writer, reader))
    try:
        await _carry_down(stream.reader, writer)
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)


async def _carry_up(engine: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        engine.write(data)
        await engine.drain()
    # Their side may have more to say. TLS knows no half-closed connection.
    if engine.can_write_eof():
        engine.write_eof()
    else:
        engine.close()


async def _carry_down(engine: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Frames of the engine: stream, three zeros, size in 4 bytes, data."""
    said = bytearray()
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await engine.readexactly(_HEAD)
            left = int.from_bytes(head[4:], "big")
            while left:
                data = await engine.read(min(left, _CHUNK_BYTES))
                if not data:
                    raise BrokenTunnel("the engine broke off in the middle of a frame")
                left -= len(data)
                if head[0] == _STDOUT:
                    writer.write(data)
                    await writer.drain()
                elif len(said) < _KEPT_ERROR_BYTES:
                    said += data
    if said:
        raise BrokenTunnel(bytes(said[:_KEPT_ERROR_BYTES]).decode(errors="replace").strip())


def demultiplexed(raw: bytes) -> bytes:
    """The data of all whole frames, both streams together."""
    found, at = bytearray(), 0
    while at + _HEAD <= len(raw):
        size = int.from_bytes(raw[at + 4 : at + _HEAD], "big")
        found += raw[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
    return bytes(found)
