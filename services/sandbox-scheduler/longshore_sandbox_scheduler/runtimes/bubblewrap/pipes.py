"""Pipes read and written on the event loop, without threads."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

_READ = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_PAUSE_S = 0.002
_LAST_BYTES = 8 * 1024 * 1024


def make_pipe(ours_reads: bool) -> tuple[int, int]:
    """(ours, theirs); our end does not block. Raises OSError."""
    read, write = os.pipe()
    ours, theirs = (read, write) if ours_reads else (write, read)
    os.set_blocking(ours, False)
    return ours, theirs


def enlarge(fd: int) -> None:
    """A larger pipe, where the user's quota of pipe pages allows it: a noisy command then costs fewer wake-ups."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _ready(fd: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(fd, _resolve, ready)
    try:
        await ready
    finally:
        remove(fd)


async def read_some(fd: int, size: int = _READ) -> bytes:
    """The next bytes of a non-blocking descriptor; empty at its end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(fd, size)
        except BlockingIOError:
            await _ready(fd, loop.add_reader, loop.remove_reader)


async def read_to_end(fd: int, limit: int = 1024 * 1024) -> bytes:
    """All bytes up to the end, at most limit; closes the descriptor."""
    parts: list[bytes] = []
    try:
        while limit > 0 and (part := await read_some(fd)):
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(fd)
    return b"".join(parts)


async def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes. Raises BrokenPipeError when nobody reads."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await _ready(fd, loop.add_writer, loop.remove_writer)


class Drain:
    """Reads a pipe until its end and hands everything over; closing is its own business.

    take(data) returns True when it only drops what comes: then the pipe is read slower, so that an endless writer
    does not take the event loop.
    """

    def __init__(self, fd: int, take: Callable[[bytes], bool]) -> None:
        self._fd = fd
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        self._timer = None
        data = self._read_once()
        if data and self._take(data):
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        if self.closed:
            return
        data = self._read_once(_PIPE_BYTES)
        if self.closed:
            return
        if data and self._take(data):
            self._timer = self._loop.call_later(_PAUSE_S, self._resume)
        else:
            self._loop.add_reader(self._fd, self._read)

    def _read_once(self, size: int = _READ) -> bytes | None:
        """None when nothing waits; closes at the end of the stream."""
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    def flush(self) -> None:
        """Hands over what is in the pipe now: all that an ended command wrote."""
        left = _LAST_BYTES
        while not self.closed and left > 0 and (data := self._read_once(_PIPE_BYTES)):
            self._take(data)
            left -= len(data)

    def discard_rest(self) -> None:
        """From now on only empties the pipe: processes that outlive the command must not block on it."""
        self._take = lambda _: True

    def close(self) -> None:
        """Stops reading. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
