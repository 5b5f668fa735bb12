"""A thin client of the Docker Engine API over a unix socket or TCP; Podman serves the same one.

Plain dicts over aiohttp, as for Kubernetes. An exec's stream is no HTTP any more once it has begun (it is read and half
closed as the connection it is), so that one call is made on a connection of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from prometheus_client import Counter

from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.runtimes.tunnels import close_writer

CALLS = Counter(
    "longshore_sandbox_engine_calls", "Calls to the container engine by outcome (code 0: no answer)", ["call", "code"]
)

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_NEWEST = (1, 44)
"""The newest version of the API that we know; an engine that has it is asked for no newer one."""
_LINE_BYTES = 1024 * 1024
_HEAD_BYTES = 64 * 1024
_PASSING = frozenset({0, 408, 429, 502, 503, 504})


class EngineError(Unavailable):
    """A call that failed. status: HTTP's; 0: no answer, and whether the call acted is unknown."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, details={"engine_status": str(status)}, retryable=status in _PASSING)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status, self.message))


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is reached."""

    host: str = ""
    """unix:///path or tcp://host:port; empty: DOCKER_HOST, else Docker's own socket."""
    cert_path: str = ""
    """Folder with ca.pem, cert.pem and key.pem, for TCP with TLS; empty: DOCKER_CERT_PATH where DOCKER_TLS_VERIFY is
    set."""
    timeout_s: float = 60.0
    """Longest time of one call, seconds; builds, pulls and streams apart."""


@dataclass(frozen=True)
class Place:
    """Where the engine listens: a path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = None

    @property
    def base(self) -> str:
        """Base URL of requests."""
        if self.path:
            return "http://engine"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def place_of(options: EngineOptions, env: Mapping[str, str] = os.environ) -> Place:
    """Raises InvalidSpec for an address that cannot be used."""
    host = options.host or env.get("DOCKER_HOST", "") or _DEFAULT_HOST
    url = urlsplit(host)
    if url.scheme == "unix" and url.path and not url.netloc:
        return Place(path=url.path)
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme != "tcp" or not url.hostname or port is None:
        raise InvalidSpec(
            f"the engine's address {host!r} is neither unix:///path nor tcp://host:port (ssh: forward its socket "
            "and name that); set docker.engine.host or DOCKER_HOST",
            field="docker.engine.host",
        )
    folder = options.cert_path or (env.get("DOCKER_CERT_PATH", "") if env.get("DOCKER_TLS_VERIFY") else "")
    return Place(host=url.hostname, port=port, tls=_tls(Path(folder)) if folder else None)


def _tls(folder: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except OSError as error:
        raise InvalidSpec(
            f"the engine's certificates in {folder} cannot be used: {error}", field="docker.engine.cert_path"
        ) from error
    return context


@dataclass(frozen=True)
class RawStream:
    """An upgraded connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class EngineApi:
    """One per process; `open` makes it. Raises EngineError only."""

    def __init__(self, place: Place, session: aiohttp.ClientSession, timeout_s: float) -> None:
        self._place = place
        self._session = session
        self._timeout_s = timeout_s
        self._prefix = ""

    @classmethod
    async def open(cls, options: EngineOptions) -> EngineApi:
        """Connects to nothing yet. Raises InvalidSpec."""
        place = place_of(options)
        # Events, builds and pulls hold connections for as long as they take: no limit.
        connector: aiohttp.BaseConnector
        if place.path:
            connector = aiohttp.UnixConnector(place.path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0, ssl=place.tls or True)
        session = aiohttp.ClientSession(connector=connector, read_bufsize=_LINE_BYTES)
        return cls(place, session, options.timeout_s)

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def connect(self) -> dict[str, Any]:
        """Agrees on a version of the API; gives the engine's own description (`/info`).

        Raises:
            EngineError: it is away, or too old.
        """
        version = await self.call("GET", "/version")
        theirs = tuple(int(part) for part in str(version["ApiVersion"]).split(".")[:2])
        major, minor = min(theirs, _NEWEST)
        self._prefix = f"/v{major}.{minor}"
        found: dict[str, Any] = await self.call("GET", "/info")
        return found

    async def ping(self) -> None:
        """Raises EngineError when it does not answer."""
        await self.read("/_ping", {})

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        tar: bytes | None = None,
    ) -> Any:
        """One call with JSON or a tar; what it answers, None where it answers nothing."""
        async with self._asking(method, path, params or {}, body, tar, self._timeout_s) as reply:
            raw = await reply.read()
            return json.loads(raw) if raw and reply.content_type == "application/json" else None

    async def read(self, path: str, params: Mapping[str, str]) -> bytes:
        """The bytes of an answer."""
        async with self._asking("GET", path, params, timeout_s=self._timeout_s) as reply:
            return await reply.read()

    async def head(self, path: str, params: Mapping[str, str]) -> Mapping[str, str]:
        """The headers of an answer."""
        async with self._asking("HEAD", path, params, timeout_s=self._timeout_s) as reply:
            return dict(reply.headers)

    @asynccontextmanager
    async def streaming(
        self, method: str, path: str, params: Mapping[str, str], tar: bytes | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """A call that answers one JSON object after the other, for as long as it takes; it ends with the block."""
        async with self._asking(method, path, params, None, tar, None) as reply:
            yield _objects(reply.content, f"{method} {path}")

    @asynccontextmanager
    async def _asking(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Any = None,
        tar: bytes | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        what, name = f"{method} {path}", _call_name(method, path)
        arguments: dict[str, Any] = {"params": params}
        if body is not None:
            arguments["json"] = body
        elif tar is not None:
            arguments |= {"data": tar, "headers": {"Content-Type": "application/x-tar"}}
        # A limit on the wait for a connection only: what comes then may take its time.
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._timeout_s)
        url = f"{self._place.base}{self._prefix}{path}"
        try:
            async with self._session.request(method, url, timeout=timeout, **arguments) as reply:
                CALLS.labels(name, str(reply.status)).inc()
                if reply.status >= 400:
                    raise EngineError(reply.status, f"{what}: {_message(await reply.read(), reply.status)}")
                yield reply
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            CALLS.labels(name, "0").inc()
            raise _no_answer(what, error) from error

    async def upgrade(self, path: str, body: Any) -> RawStream:
        """POSTs and takes over the connection: raw bytes both ways. The caller closes the writer."""
        what = f"POST {path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await self._connection()
                try:
                    return await self._take_over(reader, writer, path, json.dumps(body).encode())
                except BaseException:
                    await close_writer(writer)
                    raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise _no_answer(what, error) from error

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = self._place
        if place.path:
            return await asyncio.open_unix_connection(place.path, limit=_HEAD_BYTES)
        return await asyncio.open_connection(place.host, place.port, ssl=place.tls, limit=_HEAD_BYTES)

    async def _take_over(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
    ) -> RawStream:
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._place.host or 'engine'}\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(None, 2)[1])
        CALLS.labels(_call_name("POST", path), str(status)).inc()
        # Older engines say 200 and go on with the raw stream all the same.
        if status not in (101, 200):
            raise EngineError(status, f"POST {path}: {_message(await reader.read(_HEAD_BYTES), status)}")
        return RawStream(reader, writer)


async def _objects(content: aiohttp.StreamReader, what: str) -> AsyncIterator[dict[str, Any]]:
    try:
        async for line in content:
            if line.strip():
                yield json.loads(line)
    except ValueError as error:
        raise EngineError(0, f"{what}: the engine sent what is no JSON line: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _no_answer(what, error) from error


def _call_name(method: str, path: str) -> str:
    """Bounded: a kind of object and a verb, no names."""
    parts = path.strip("/").split("/")
    return f"{method} {parts[0]}" if len(parts) < 2 else f"{method} {parts[0]}/{parts[-1] if len(parts) > 2 else '*'}"


def _message(raw: bytes, status: int) -> str:
    try:
        found = json.loads(raw)
    except ValueError:
        found = {}
    text = found.get("message") if isinstance(found, dict) else None
    return str(text or raw[:500].decode(errors="replace").strip() or f"HTTP {status}")


def _no_answer(what: str, error: BaseException) -> EngineError:
    return EngineError(0, f"the container engine does not answer ({what}): {str(error) or type(error).__name__}")
