"""A faked container engine on a unix socket: answers what a test scripts, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineOptions


@dataclass
class FakeEngine:
    """Containers by name; everything else by (method, path) in `answers`: a status and a body."""

    api_version: str = "1.41"
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    away: bool = False
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    _events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    def tell(self, action: str, name: str) -> None:
        """An event of a container."""
        self._events.put_nowait({"Type": "container", "Action": action, "Actor": {"Attributes": {"name": name}}})

    def break_events(self) -> None:
        """Ends the stream of events."""
        self.listening.clear()
        self._events.put_nowait(None)

    def end(self, name: str, **state: Any) -> None:
        """A container ends, without anybody hearing of it."""
        self.containers[name]["State"] = {"Running": False, "Status": "exited", "ExitCode": 1, **state}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        version, _, rest = request.path.lstrip("/").partition("/")
        path = f"/{rest}" if version.startswith("v1.") else request.path
        key = (request.method, path)
        self.asked.append(key)
        if self.away:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if request.can_read_body and request.content_type == "application/json":
            self.bodies.append(await request.json())
        if key in self.answers:
            status, body = self.answers[key]
            lines = b"".join(json.dumps(one).encode() + b"\n" for one in body) if isinstance(body, list) else b""
            return web.Response(status=status, body=lines or json.dumps(body), content_type="application/json")
        if path == "/version":
            return web.json_response({"ApiVersion": self.api_version})
        if path == "/info":
            return web.json_response({"Name": "fake"})
        if path == "/events":
            return await self._stream(request)
        return self._container(request.method, path, request.query.get("name", ""))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        self.listening.set()
        while (event := await self._events.get()) is not None:
            await answer.write(json.dumps(event).encode() + b"\n")
        return answer

    def _container(self, method: str, path: str, new: str) -> web.Response:
        if path == "/containers/create":
            self.containers[new] = {"State": {"Running": True, "Status": "running"}}
            return web.json_response({"Id": new}, status=201)
        name = path.split("/")[2] if path.startswith("/containers/") else ""
        if name and name not in self.containers:
            return web.json_response({"message": f"No such container: {name}"}, status=404)
        if method == "DELETE":
            self.containers.pop(name, None)
            return web.Response(status=204)
        if path.endswith("/json") and name:
            return web.json_response(self.containers[name])
        return web.Response(status=204)


@asynccontextmanager
async def serving(engine: FakeEngine, folder: Path) -> AsyncIterator[EngineApi]:
    """A client of the faked engine."""
    path = folder / "engine.sock"
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(path), shutdown_timeout=0.1).start()
    api = await EngineApi.open(EngineOptions(f"unix://{path}", timeout_s=5))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()
