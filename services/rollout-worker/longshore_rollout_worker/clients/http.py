"""A small HTTP/1.1 client for many parallel POSTs to few hosts.

A general client costs several times the CPU of the call itself here, and its pool grows slower with each connection;
all services may share this event loop. It knows what the gateway sends: a status, headers, and a body with a length or
in chunks. It follows no redirects, sends no cookies and uses no proxy.
"""

import asyncio
import functools
import ssl
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
# Servers cut idle connections after about 5 s; a request sent into one that is being cut would be lost.
_IDLE_S = 3.0
_CONNECT_S = 10.0


class ConnectionBroken(Exception):
    """No whole answer came: refused, cut, timed out, or not HTTP. Whether the server acted is unknown."""


@dataclass(frozen=True)
class HttpAnswer:
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class _Target:
    host: str
    port: int
    tls: bool
    authority: str
    path: str


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0


class HttpClient:
    """Keeps at most max_idle connections per host. timeout_s bounds one call from connect to the last byte."""

    def __init__(self, max_idle: int, timeout_s: float) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = defaultdict(list)
        self._max_idle, self._timeout_s = max_idle, timeout_s

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Sends one POST. Raises ConnectionBroken."""
        target = _target(url)
        connection: _Connection | None = None
        done = False
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._take(target) or await _connect(target)
                connection.writer.write(_request(target, headers, body))
                await connection.writer.drain()
                answer, reusable = await _read(connection.reader)
            done = reusable
        except TimeoutError as error:
            raise ConnectionBroken(f"{url}: no whole answer within {self._timeout_s:g} s") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise ConnectionBroken(f"{url}: {type(error).__name__}: {error}") from error
        finally:
            # Also on cancellation: a connection with half an answer in it must not be used again.
            if connection is not None:
                self._give(target, connection, done)
        return answer

    def _take(self, target: _Target) -> _Connection | None:
        idle, now = self._idle[target.host, target.port], time.monotonic()
        while idle:
            connection = idle.pop()
            if now - connection.idle_since < _IDLE_S and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return None

    def _give(self, target: _Target, connection: _Connection, reusable: bool) -> None:
        idle = self._idle[target.host, target.port]
        if reusable and len(idle) < self._max_idle:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.writer.close()

    async def close(self) -> None:
        """Closes all idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.writer.close()
        self._idle.clear()


@functools.lru_cache(maxsize=1024)
def _target(url: str) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConnectionBroken(f"{url} is no http address")
    tls = parts.scheme == "https"
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    return _Target(parts.hostname, parts.port or (443 if tls else 80), tls, parts.netloc, path)


async def _connect(target: _Target) -> _Connection:
    context = ssl.create_default_context() if target.tls else None
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context, limit=_MAX_HEAD_BYTES)
    return _Connection(reader, writer)


def _request(target: _Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"host: {target.authority}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _read(reader: asyncio.StreamReader) -> tuple[HttpAnswer, bool]:
    """The answer, and whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not an HTTP answer: {first[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, kept = int(rest[:3]), headers.get("connection", "").lower() != "close"
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return HttpAnswer(status, headers, await _read_chunks(reader)), kept
    if "content-length" in headers:
        return HttpAnswer(status, headers, await reader.readexactly(_bounded(int(headers["content-length"])))), kept
    if status in (204, 304):
        return HttpAnswer(status, headers, b""), kept
    body = await reader.read(_MAX_BODY_BYTES)
    return HttpAnswer(status, headers, body), False


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return bytes(body)
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk does not end where it says")


def _bounded(size: int) -> int:
    if not 0 <= size <= _MAX_BODY_BYTES:
        raise ValueError(f"an answer of {size} bytes is larger than {_MAX_BODY_BYTES}")
    return size
