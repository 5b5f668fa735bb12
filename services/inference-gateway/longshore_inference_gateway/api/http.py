"""The data port: OpenAI chat completions for whoever holds a session's token. Plain ASGI: this is the hot path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from longshore_common.errors import InvalidSpec, LongshoreError, NotFound, PermissionDenied
from longshore_common.scope import arrived
from longshore_inference_gateway.api import openai_errors
from longshore_inference_gateway.domain.chat import Chat
from longshore_inference_gateway.domain.models import Reason
from longshore_inference_gateway.domain.sessions import Session, Sessions
from longshore_inference_gateway.domain.trace import Call
from longshore_inference_gateway.metrics import REQUESTS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_JSON: Headers = [(b"content-type", b"application/json")]
_SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class DataPort:
    """ASGI application: POST /v1/chat/completions, GET /v1/models, GET /healthz."""

    def __init__(self, sessions: Sessions, chat: Chat, *, max_body_bytes: int) -> None:
        self._sessions = sessions
        self._chat = chat
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            await self._route(scope, receive, send)
        except LongshoreError as error:
            await _send_error(send, error)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("POST", "/v1/chat/completions"):
            session = self._authenticate(scope)
            with arrived("inference-gateway.chat.completions", _trace_headers(scope), session.record):
                await self._chat_completions(session, scope, receive, send)
        elif route == ("GET", "/v1/models"):
            await _send(send, 200, _JSON, _models(self._authenticate(scope)))
        elif route == ("GET", "/healthz"):
            await _send(send, 200, _JSON, b'{"status":"ok"}')
        else:
            raise NotFound(f"{route[0]} {route[1]} is not served here; use POST /v1/chat/completions")

    def _authenticate(self, scope: Scope) -> Session:
        value = _header(scope, b"authorization").decode("latin-1")
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise PermissionDenied(
                "send the session's token as Authorization: Bearer <token>", details={"reason": Reason.INVALID_TOKEN}
            )
        return self._sessions.authenticate(token.strip())

    async def _chat_completions(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read_body(receive)
        marked = _header(scope, b"x-stainless-retry-count") not in (b"", b"0")
        call = self._chat.call(session, body, marked)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            if call.stream:
                await _send_stream(send, call, gone)
            else:
                await _send_whole(send, call, gone)
        finally:
            gone.cancel()

    async def _read_body(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidSpec("the client left before its request was complete", field="body")
            piece = message.get("body", b"")
            size += len(piece)
            if size > self._max_body_bytes:
                raise InvalidSpec(
                    f"the request body is larger than {self._max_body_bytes} bytes",
                    field="body",
                    details={"reason": Reason.INVALID_REQUEST},
                )
            pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(send: Send, call: Call, gone: asyncio.Task[None]) -> None:
    if not await _unless_gone(call.finished(), gone):
        return
    if call.error is not None:
        await _send_error(send, call.error, _queued(call))
        return
    await _send(send, 200, _JSON + _queued(call), call.body)
    call.delivered = call.delivered or not gone.done()


async def _send_stream(send: Send, call: Call, gone: asyncio.Task[None]) -> None:
    # Status and headers wait for the first token, so that an engine that is down is a 503 and not a broken stream.
    if not await _unless_gone(call.started(), gone):
        return
    if call.error is not None and not call.events:
        await _send_error(send, call.error, _queued(call))
        return
    await send({"type": "http.response.start", "status": 200, "headers": _SSE + _queued(call)})
    REQUESTS.labels("200").inc()
    async for event in call.follow():
        if gone.done():
            return
        await send({"type": "http.response.body", "body": event, "more_body": True})
    if call.error is not None:
        body = b"data: " + openai_errors.body_of(call.error) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    call.delivered = call.delivered or not gone.done()


async def _unless_gone(work: Awaitable[None], gone: asyncio.Task[None]) -> bool:
    """Waits for work; False when the client left first. The call itself goes on."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return True
    task.cancel()
    return False


def _queued(call: Call) -> Headers:
    return [(b"x-longshore-queued-ms", str(call.queued_ms).encode())]


def _models(session: Session) -> bytes:
    model = {"id": session.record.alias, "object": "model", "created": 0, "owned_by": "longshore"}
    return json.dumps({"object": "list", "data": [model]}).encode()


def _trace_headers(scope: Scope) -> list[tuple[str, str]]:
    # Nothing else: who holds a session's token must not say what its calls belong to.
    given = _header(scope, b"traceparent")
    return [("traceparent", given.decode("latin-1"))] if given else []


def _header(scope: Scope, name: bytes) -> bytes:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


async def _send_error(send: Send, error: LongshoreError, extra: Headers | None = None) -> None:
    headers = _JSON + openai_errors.headers_of(error) + (extra or [])
    await _send(send, openai_errors.status_of(error), headers, openai_errors.body_of(error))


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    REQUESTS.labels(str(status)).inc()
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + length})
    await send({"type": "http.response.body", "body": body})
