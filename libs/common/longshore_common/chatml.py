"""ChatML between messages and token ids, for Qwen-style models; tool calls in the Hermes form that Qwen was trained on.

Used by the gateway (render, splice, parse) and by the trainer's warm start (render with a loss mask), so that both see
the same ids. Rules: text never becomes a special token, each piece between special tokens is encoded by itself, and ids
that were sampled are only ever appended to, never decoded and encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from longshore_common.digests import digest, digest_file
from longshore_common.errors import InvalidSpec

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_RESPONSE_OPEN, _RESPONSE_CLOSE = "<tool_response>", "</tool_response>"

# Everything that decides how messages become ids; part of the template digest.
_TEMPLATE = {
    "name": "chatml-hermes",
    "version": 1,
    "turn": "<|im_start|>{role}\n{content}<|im_end|>\n",
    "tools_header": (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    ),
    "tools_footer": (
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    ),
    "tool_role": "user",
}

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asked for. arguments_json is a JSON object as text."""

    name: str
    arguments_json: str


@dataclass(frozen=True)
class ParsedMessage:
    """What the sampled tokens say: plain content and tool calls."""

    content: str
    tool_calls: tuple[ToolCall, ...]


class ChatMLCodec:
    """Messages to ids and back for one tokenizer. Thread-safe once built."""

    def __init__(self, tokenizer: Tokenizer, tokenizer_digest: str) -> None:
        self._tokenizer = tokenizer
        # "<|im_end|>" inside a user's text must stay text.
        self._tokenizer.encode_special_tokens = True
        self.tokenizer_digest = tokenizer_digest
        self._start = self._special(IM_START)
        self._end = self._special(IM_END)
        self._newline = self._encode("\n")

    @classmethod
    def from_dir(cls, model_dir: Path | str) -> ChatMLCodec:
        """The codec of a HF model folder.

        Raises:
            InvalidSpec: no tokenizer.json there, or it lacks the ChatML tokens.
        """
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise InvalidSpec(f"{path} is missing: the model folder needs a fast tokenizer", field="model")
        return cls(Tokenizer.from_file(str(path)), digest_file(path))

    def _special(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise InvalidSpec(f"the tokenizer has no {token} token: it is not a ChatML model", field="model")
        return int(number)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def template_digest(self) -> str:
        """Digest of the template's rules."""
        return digest(_TEMPLATE)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which sampling ends."""
        text_end = self._tokenizer.token_to_id(END_OF_TEXT)
        return (self._end,) if text_end is None else (self._end, int(text_end))

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a whole conversation.

        Raises:
            InvalidSpec: a message has no known role or its content is neither text nor text parts.
        """
        ids, _ = self._render(_with_tools(messages, tools))
        return ids + (self._prompt() if generation_prompt else [])

    def render_masked(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids and a mask of the same length: 1 on what the assistant would sample, its <|im_end|> included."""
        return self._render(_with_tools(messages, tools))

    def extend(self, prefix_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """The next prompt: prefix_ids (last prompt and what was sampled) as they are, then only the new messages.

        Closes the assistant's turn when <|im_end|> was not sampled (a length limit).
        """
        ids = list(prefix_ids)
        if not ids or ids[-1] != self._end:
            ids.append(self._end)
        ids += self._newline
        new, _ = self._render(messages)
        return ids + new + self._prompt()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def parse(self, ids: Sequence[int]) -> ParsedMessage:
        """Content and tool calls of sampled ids. A malformed tool call stays in the content."""
        text = self.decode(ids)
        content, calls = [], []
        while True:
            before, opened, rest = text.partition(_CALL_OPEN)
            content.append(before)
            if not opened:
                break
            body, closed, text = rest.partition(_CALL_CLOSE)
            call = _parse_call(body) if closed else None
            if call is None:
                content.append(opened + body + closed)
            else:
                calls.append(call)
            if not closed:
                break
        joined = "".join(content)
        return ParsedMessage(joined.strip("\n") if calls else joined, tuple(calls))

    def _prompt(self) -> list[int]:
        return [self._start, *self._encode("assistant\n")]

    def _render(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        mask: list[int] = []

        def put(piece: list[int], sampled: bool) -> None:
            ids.extend(piece)
            mask.extend([int(sampled)] * len(piece))

        for index, message in enumerate(messages):
            role = message.get("role")
            assistant = role == "assistant"
            put([self._start, *self._encode(f"{_shown_role(role, index)}\n")], False)
            put([*self._encode(_content(message, index)), self._end], assistant)
            put(self._newline, False)
        return ids, mask


def _shown_role(role: object, index: int) -> str:
    if role in ("system", "user", "assistant"):
        return str(role)
    if role == "developer":
        return "system"
    if role == "tool":
        return str(_TEMPLATE["tool_role"])
    raise InvalidSpec(f"messages[{index}].role is {role!r}; use system, user, assistant or tool", field="messages")


def text_of(content: object, index: int = 0) -> str:
    """The text of a message's content: a string, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(_part_text(part, index) for part in content)
    raise InvalidSpec(f"messages[{index}].content must be text or a list of text parts", field="messages")


def _part_text(part: object, index: int) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidSpec(f"messages[{index}].content has a part that is not text", field="messages")


def _content(message: Message, index: int) -> str:
    text = text_of(message.get("content"), index)
    if message.get("role") == "tool":
        return f"{_RESPONSE_OPEN}\n{text}\n{_RESPONSE_CLOSE}"
    calls = message.get("tool_calls") or ()
    rendered = [f"{_CALL_OPEN}\n{_call_json(call)}\n{_CALL_CLOSE}" for call in calls]
    return "\n".join(([text] if text else []) + rendered) if rendered else text


def _call_json(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": json.loads(function["arguments"])}, ensure_ascii=False)


def _parse_call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> Sequence[Message]:
    if not tools:
        return messages
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    block = f"{_TEMPLATE['tools_header']}{listed}{_TEMPLATE['tools_footer']}"
    if messages and messages[0].get("role") in ("system", "developer"):
        first = {"role": "system", "content": f"{text_of(messages[0].get('content'))}\n\n{block}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": block}, *messages]
