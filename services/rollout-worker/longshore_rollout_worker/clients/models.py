"""The gateway's data port over HTTP: one client with kept-alive connections for all attempts."""

import json
from collections.abc import Mapping
from typing import Any

from longshore_common import tracing
from longshore_rollout_worker.clients.http import ConnectionBroken, HttpClient
from longshore_rollout_worker.domain.model_fault import CONNECTION_LOST
from longshore_rollout_worker.domain.ports import ModelAnswer, Session

QUEUED_HEADER = "x-longshore-queued-ms"
# The header by which OpenAI's clients mark a resent request; the gateway coalesces it with the first one.
RESEND_HEADER = "x-stainless-retry-count"


class HttpModels:
    """Implements domain.ports.ModelTransport. timeout_s bounds one call, queueing included."""

    def __init__(self, connections: int, timeout_s: float) -> None:
        self._client = HttpClient(connections, timeout_s)

    async def send(self, session: Session, request: Mapping[str, Any], resend: int) -> ModelAnswer:
        headers = {"authorization": f"Bearer {session.token}", "content-type": "application/json"}
        headers |= tracing.headers()
        if resend:
            headers[RESEND_HEADER] = str(resend)
        content = json.dumps(request, separators=(",", ":")).encode()
        try:
            answer = await self._client.post(f"{session.base_url}/chat/completions", headers, content)
        except ConnectionBroken as error:
            return ModelAnswer(CONNECTION_LOST, {"error": str(error)})
        return ModelAnswer(
            status=answer.status,
            body=_body(answer.body),
            queued_ms=_number(answer.headers.get(QUEUED_HEADER)) or 0.0,
            retry_after_s=_number(answer.headers.get("retry-after")),
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


def _body(content: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        return {"error": content[:500].decode("utf-8", "replace")}
    return body if isinstance(body, dict) else {"error": str(body)[:500]}


def _number(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
