"""vLLM's HTTP API: token ids in, token ids with logprobs and version spans out; adapters by name."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from longshore_common.errors import Internal, InvalidSpec, LongshoreError, Unavailable
from longshore_inference_gateway.clients.batch_kinds import BatchKinds
from longshore_inference_gateway.domain.models import Generated, GenerateRequest, Reason

_GENERATE = "/inference/v1/generate"
_SSE_PREFIX = b"data:"
_SSE_DONE = b"[DONE]"


def api_key_of(secret: str) -> str | None:
    """The key of engines that other processes start, derived from the service secret; none without a secret."""
    return hmac.new(secret.encode(), b"longshore engine api", hashlib.sha256).hexdigest() if secret else None


class VllmClient:
    """One engine. Connections are kept alive; there is no limit here because admission is bounded before.

    base_apart: name of the base model when its calls must not share a batch with those of adapters (see batch_kinds).
    api_key: what guards the engine's /v1 and /inference routes.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_s: float,
        call_timeout_s: float,
        admin_timeout_s: float,
        base_apart: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._base_apart = base_apart
        self._kinds = BatchKinds()
        self._address = address
        self._call_timeout = aiohttp.ClientTimeout(total=call_timeout_s, sock_connect=connect_timeout_s)
        self._admin_timeout = aiohttp.ClientTimeout(total=admin_timeout_s, sock_connect=connect_timeout_s)
        self._health_timeout = aiohttp.ClientTimeout(total=connect_timeout_s)
        self._session = aiohttp.ClientSession(
            f"http://{address}",
            # Shorter than uvicorn's 5 s: a connection that the engine closes while we send is a lost call.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
            # Loopback and cluster addresses must not go through a proxy of the environment.
            trust_env=False,
            headers={"authorization": f"Bearer {api_key}"} if api_key else None,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def generate(self, request: GenerateRequest) -> Generated:
        """All tokens at once."""
        async with self._batch_of(request):
            status, raw = await self._post(_GENERATE, _body(request, stream=False), self._call_timeout)
        if status != 200:
            raise self._refused(status, raw)
        return _generated(self._json(raw))

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Generated]:
        """Pieces in order. Leaving the iterator early aborts the request in the engine."""
        try:
            async with (
                self._batch_of(request),
                self._session.post(
                    _GENERATE, data=_body(request, stream=True), headers=_JSON, timeout=self._call_timeout
                ) as response,
            ):
                if response.status != 200:
                    raise self._refused(response.status, await response.read())
                finished = False
                async for line in response.content:
                    if not line.startswith(_SSE_PREFIX):
                        continue
                    data = line[len(_SSE_PREFIX) :].strip()
                    if data == _SSE_DONE:
                        return
                    piece = _generated(self._checked(self._json(data)))
                    finished = finished or bool(piece.finish_reason)
                    yield piece
                if not finished:
                    raise self._lost("the stream ended before the last token")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._lost(_text(error)) from error

    def _batch_of(self, request: GenerateRequest) -> contextlib.AbstractAsyncContextManager[None]:
        if self._base_apart is None:
            return contextlib.nullcontext()
        return self._kinds.of(request.model != self._base_apart)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Loads a LoRA adapter; already loaded: a no-op."""
        body = json.dumps({"lora_name": name, "lora_path": folder}).encode()
        status, raw = await self._post("/v1/load_lora_adapter", body, self._admin_timeout)
        if status == 200 or name in (await self.served_names())[0]:
            return
        if status == 404:
            raise Internal(
                f"engine at {self._address} does not see {folder}: gateway, trainer and engines must mount the same "
                f"volume at the same path, and {name} must still be there ({raw[:300].decode(errors='replace')})"
            )
        raise self._failed(f"load adapter {name}", status, raw)

    async def unload_adapter(self, name: str) -> None:
        """Unloads; absent: a no-op."""
        body = json.dumps({"lora_name": name}).encode()
        status, raw = await self._post("/v1/unload_lora_adapter", body, self._admin_timeout)
        if status not in (200, 404) and name in (await self.served_names())[0]:
            raise self._failed(f"unload adapter {name}", status, raw)

    async def served_names(self) -> tuple[list[str], int]:
        """Model names and the context length."""
        status, raw = await self._get("/v1/models", self._admin_timeout)
        if status != 200:
            raise self._refused(status, raw)
        models = self._json(raw).get("data") or []
        length = next((model["max_model_len"] for model in models if model.get("max_model_len")), 0)
        return [str(model["id"]) for model in models], int(length)

    async def healthy(self) -> bool:
        """Whether /health answers 200 in time."""
        try:
            status, _ = await self._get("/health", self._health_timeout)
        except LongshoreError:
            return False
        return status == 200

    async def close(self) -> None:
        """Drops connections."""
        await self._session.close()

    async def _post(self, path: str, body: bytes, timeout: aiohttp.ClientTimeout) -> tuple[int, bytes]:
        try:
            async with self._session.post(path, data=body, headers=_JSON, timeout=timeout) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._lost(_text(error)) from error

    async def _get(self, path: str, timeout: aiohttp.ClientTimeout) -> tuple[int, bytes]:
        try:
            async with self._session.get(path, timeout=timeout) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._lost(_text(error)) from error

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(
            f"engine at {self._address} did not answer: {why}", details={"reason": Reason.ENGINE_UNAVAILABLE}
        )

    def _refused(self, status: int, raw: bytes) -> LongshoreError:
        message = raw[:500].decode(errors="replace")
        if 400 <= status < 500:
            return InvalidSpec(f"engine at {self._address} refused the request ({status}): {message}", field="engine")
        return self._lost(f"status {status}: {message}")

    def _failed(self, what: str, status: int, raw: bytes) -> Internal:
        # Not Unavailable: callers' channels would repeat it at once, to the same end.
        return Internal(f"engine at {self._address} cannot {what} ({status}): {raw[:500].decode(errors='replace')}")

    def _json(self, raw: bytes) -> dict[str, Any]:
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise self._lost(f"it answered something that is not JSON: {raw[:100]!r}") from error
        return value if isinstance(value, dict) else {}

    def _checked(self, value: dict[str, Any]) -> dict[str, Any]:
        if "error" in value:
            raise self._lost(str(value["error"])[:500])
        return value


_JSON = {"content-type": "application/json"}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _body(request: GenerateRequest, *, stream: bool) -> bytes:
    sampling = request.sampling
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "logprobs": 0,
        "stop_token_ids": request.stop_ids,
        "detokenize": False,
    }
    if sampling.top_p != 1.0:
        parameters["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        parameters["top_k"] = sampling.top_k
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    body: dict[str, Any] = {"model": request.model, "token_ids": request.prompt_ids, "sampling_params": parameters}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body, separators=(",", ":")).encode()


def _generated(value: Mapping[str, Any]) -> Generated:
    answer = Generated(model=value.get("model") or "")
    usage = value.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens")
    for choice in value.get("choices") or ():
        answer.token_ids = list(choice.get("token_ids") or ())
        answer.finish_reason = choice.get("finish_reason") or ""
        answer.spans = [(span["start"], span["version"]) for span in choice.get("weight_versions") or ()]
        content = (choice.get("logprobs") or {}).get("content") or ()
        answer.logprobs = [_logprob(item) for item in content]
    return answer


def _logprob(item: Mapping[str, Any]) -> float:
    # Missing stays missing (NaN): a zero would look like a certain token.
    value = item.get("logprob")
    return float(value) if value is not None else math.nan
