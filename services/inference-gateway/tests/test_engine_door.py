"""The door before vLLM's routes: everything needs the key but what probes and Prometheus read."""

from typing import Any

import pytest

from longshore_inference_gateway.engine_door import Door


async def _ask(path: str, method: str = "GET", key: str = "", kind: str = "http") -> Any:
    """The status that comes back; "inside" when the request passes."""
    sent: list[Any] = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        sent.append("inside")

    async def send(message: Any) -> None:
        sent.append(message.get("status") or message.get("code") or message["type"])

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": kind, "path": path, "method": method, "headers": headers}
    await Door(inside)(scope, None, send)  # type: ignore[arg-type]
    return sent[0]


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "right")


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/pause", "/update_weights", "/healthz", "/metrics/x"])
async def test_what_is_not_open_needs_the_key(path: str) -> None:
    assert await _ask(path) == 401
    assert await _ask(path, "OPTIONS") == 401
    assert await _ask(path, "POST", "wrong") == 401
    assert await _ask(path, "POST", "right") == "inside"


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_probes_and_prometheus_read_without_a_key(path: str) -> None:
    assert await _ask(path) == "inside"
    assert await _ask(path, "POST") == 401


@pytest.mark.usefixtures("_key")
async def test_sockets_are_closed_and_the_life_of_the_server_is_not_asked_for_a_key() -> None:
    assert await _ask("/v1/realtime", kind="websocket") == 1008
    assert await _ask("", kind="lifespan") == "inside"


async def test_without_a_key_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert await _ask("/v1/models") == "inside"
