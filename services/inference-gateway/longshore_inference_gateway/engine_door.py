"""The door of an engine: vLLM runs it before its own routes, by `--middleware`.

vLLM's API key guards /v1, /v2, /inference and /cohere only. Open stay, among others, /invocations (which samples, and
loads adapters by header), /tokenize, /scale_elastic_ep, and with VLLM_SERVER_DEV_MODE also /pause, /update_weights and
/collective_rpc. Here everything needs the key but what probes and Prometheus read.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
OPEN = frozenset({"/health", "/metrics"})

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_REFUSAL = json.dumps({"error": {"message": "wrong or missing engine key", "code": "unauthorized"}}).encode()


class Door:
    """Answers 401 without the key of the environment; without a key there every request passes, as in vLLM itself."""

    def __init__(self, app: _App) -> None:
        self._app = app
        key = os.environ.get(KEY_VARIABLE, "")
        self._expected = f"Bearer {key}".encode() if key else b""

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """ASGI."""
        if scope["type"] in ("http", "websocket") and self._expected and not self._may_pass(scope):
            await _refuse(scope, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: _Scope) -> bool:
        if scope["path"] in OPEN and scope.get("method") in ("GET", "HEAD"):
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)


async def _refuse(scope: _Scope, send: _Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})
