"""Text of a growing list of ids, in pieces that add up exactly to the parsed content."""

from __future__ import annotations

from collections.abc import Sequence

from longshore_inference_gateway.domain.ports import Codec

_REPLACEMENT = "\ufffd"
_CALL_OPEN = "<tool_call>"
# Ids that are decoded again before each new piece: enough for bytes of one character spread over tokens.
_WINDOW = 8


class TextStream:
    """Emits deltas of the content. Holds back incomplete characters and whatever may become a tool call.

    Invariant: the deltas of `push`, then `finish(content)`, joined, equal content.
    """

    def __init__(self, codec: Codec, hold_tool_calls: bool) -> None:
        self._codec = codec
        self._hold = hold_tool_calls
        self._ids: list[int] = []
        self._settled = 0
        self._settled_text = ""
        self._emitted = 0
        self._closed = False

    def push(self, ids: Sequence[int]) -> str:
        """Adds ids; gives the text that is certain by now."""
        self._ids.extend(ids)
        text = self._text()
        if self._closed:
            return ""
        safe = _without_incomplete_end(text)
        if self._hold:
            safe = self._before_call(safe)
        delta = safe[self._emitted :]
        self._emitted = max(self._emitted, len(safe))
        return delta

    def finish(self, content: str) -> str:
        """The rest, once the whole content is known."""
        return content[self._emitted :]

    def _text(self) -> str:
        tail = self._codec.decode(self._ids[self._settled :])
        text = self._settled_text + tail
        # Settle ids whose text can no longer change, so that each push decodes only a short tail.
        if len(self._ids) - self._settled > 4 * _WINDOW:
            cut = len(self._ids) - _WINDOW
            head = self._codec.decode(self._ids[self._settled : cut])
            if not head.endswith(_REPLACEMENT) and tail.startswith(head):
                self._settled_text += head
                self._settled = cut
        return text

    def _before_call(self, text: str) -> str:
        opened = text.find(_CALL_OPEN)
        if opened >= 0:
            self._closed = True
            text = text[:opened]
        else:
            text = text[: len(text) - _partial_tag(text)]
        # parse() strips newlines around tool calls: at either end they are not certain yet.
        if text.startswith("\n"):
            return ""
        return text.rstrip("\n")


def _without_incomplete_end(text: str) -> str:
    return text.rstrip(_REPLACEMENT)


def _partial_tag(text: str) -> int:
    for length in range(min(len(_CALL_OPEN) - 1, len(text)), 0, -1):
        if text.endswith(_CALL_OPEN[:length]):
            return length
    return 0
