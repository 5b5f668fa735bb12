"""The dialect of OpenAI chat completions: what a request asks, how an answer is written. No HTTP here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore_common.chatml import ParsedMessage
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.models import FinishReason, Reason

DIALECT = "openai.chat"
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client wants. Its sampling, model name and logprobs are not here: the session decides those."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    parse_tools: bool
    """Tool calls in the answer become `tool_calls`."""
    stream: bool
    include_usage: bool


def parse_request(body: bytes) -> ChatRequest:
    """The request in a body.

    Sampling parameters, model, logprobs and token limits are overridden by the session and ignored here (the whole body
    is kept in the turn). What would change the answer's form and cannot be done is refused.

    Raises:
        InvalidSpec: details["reason"] is invalid_request or unsupported_parameter, details["field"] the parameter.
    """
    try:
        data = json.loads(body)
    except (ValueError, UnicodeDecodeError) as error:
        raise _invalid(f"the body is not JSON: {error}", "body") from error
    if not isinstance(data, dict):
        raise _invalid("the body must be a JSON object", "body")
    _refuse_unsupported(data)
    tools = _tools(data)
    options = data.get("stream_options")
    return ChatRequest(
        messages=_messages(data),
        tools=tools,
        parse_tools=bool(tools) and data.get("tool_choice") != "none",
        stream=data.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _invalid(message: str, field: str, reason: Reason = Reason.INVALID_REQUEST) -> InvalidSpec:
    return InvalidSpec(message, field=field, details={"reason": reason})


def _unsupported(message: str, field: str) -> InvalidSpec:
    return _invalid(message, field, Reason.UNSUPPORTED_PARAMETER)


def _refuse_unsupported(data: Mapping[str, Any]) -> None:
    for name in ("n", "best_of"):
        if data.get(name) not in (None, 1):
            raise _unsupported(f"{name} must be 1: every sampled answer is captured; send {name} requests", name)
    if data.get("stop"):
        raise _unsupported("stop sequences are not supported: sampling ends where the model ends its turn", "stop")
    if data.get("functions") or data.get("function_call"):
        raise _unsupported("functions are deprecated: use tools", "functions")
    choice = data.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise _unsupported("tool_choice must be auto or none: forced calls change what is sampled", "tool_choice")
    shape = data.get("response_format")
    if shape is not None and (not isinstance(shape, dict) or shape.get("type") != "text"):
        raise _unsupported("response_format must be text: grammars change what is sampled", "response_format")
    if data.get("modalities") not in (None, ["text"]):
        raise _unsupported("modalities must be text", "modalities")


def _messages(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages must be a list with at least one message", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _invalid(f"messages[{index}].role must be one of {', '.join(_ROLES)}", "messages")
        for call in message.get("tool_calls") or ():
            _check_call(call, index)
    return messages


def _check_call(call: object, index: int) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _invalid(f"messages[{index}].tool_calls has a call without function.name", "messages")
    try:
        json.loads(function.get("arguments") or "")
    except (TypeError, ValueError) as error:
        raise _invalid(f"messages[{index}].tool_calls: arguments are not JSON text", "messages") from error


def _tools(data: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = data.get("tools")
    if not tools:
        return None
    if not isinstance(tools, list):
        raise _invalid("tools must be a list", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise _unsupported(f"tools[{index}]: only type function is supported", "tools")
    return tools


def assistant_message(parsed: ParsedMessage, call_ids: Sequence[str]) -> dict[str, Any]:
    """The message of an answer. call_ids: one per tool call."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call_id, call in zip(call_ids, parsed.tool_calls, strict=True)
        ]
    return message


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer repeat. created: seconds since the epoch."""

    completion_id: str
    created: int
    model: str

    def completion(self, message: Mapping[str, Any], finish: FinishReason, usage: Mapping[str, int]) -> bytes:
        """A whole answer."""
        choice = {"index": 0, "message": message, "finish_reason": finish.value, "logprobs": None}
        return _dump(self._head("chat.completion") | {"choices": [choice], "usage": usage})

    def chunk(self, delta: Mapping[str, Any], finish: FinishReason | None = None) -> bytes:
        """One SSE event with a delta."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish.value if finish else None, "logprobs": None}
        return sse(_dump(self._head("chat.completion.chunk") | {"choices": [choice]}))

    def usage_chunk(self, usage: Mapping[str, int]) -> bytes:
        """The SSE event that stream_options.include_usage asks for."""
        return sse(_dump(self._head("chat.completion.chunk") | {"choices": [], "usage": usage}))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


DONE = b"data: [DONE]\n\n"


def sse(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + payload + b"\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def tool_call_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """The delta that carries all tool calls of a finished message."""
    return {"tool_calls": [call | {"index": index} for index, call in enumerate(message["tool_calls"])]}


def _dump(value: Mapping[str, Any]) -> bytes:
    # Sampled bytes can decode to lone surrogates of nothing valid: escape rather than fail.
    return json.dumps(value, separators=(",", ":")).encode()
