"""Which turn a request continues, and the ids that it therefore starts with.

A trace is a prefix tree over messages. A request whose messages begin with those of an earlier turn, followed by
exactly the answer that we gave, continues that turn: its prompt is that turn's ids as they were sampled plus the
rendered rest. Everything else is rendered afresh. Parallel subagents, retries and compaction are branches of one tree.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore_common.chatml import text_of
from longshore_inference_gateway.domain.ports import Codec

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to send, the turn that they extend (-1: none), and the keys under which the answer will be recorded."""

    ids: list[int]
    parent_turn: int
    key: bytes
    shared: int
    """How many leading ids are the parent's."""


@dataclass(frozen=True, slots=True)
class _Node:
    parent: _Node | None
    turn: int
    suffix: array[int]
    """Prompt ids after the parent's, then the completion: the tree holds every id once."""

    def ids(self) -> list[int]:
        pieces: list[array[int]] = []
        node: _Node | None = self
        while node is not None:
            pieces.append(node.suffix)
            node = node.parent
        joined: list[int] = []
        for piece in reversed(pieces):
            joined.extend(piece)
        return joined


class Lineage:
    """The prefix tree of one attempt's captured turns."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ends: dict[bytes, _Node] = {}
        self._nodes: dict[int, _Node] = {}

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> Prompt:
        """The prompt of a request.

        Raises:
            InvalidSpec: a message cannot be rendered.
        """
        keys = _chain(messages, tools)
        for length in range(len(messages) - 1, 0, -1):
            node = self._ends.get(keys[length])
            if node is not None:
                prefix = node.ids()
                ids = self._codec.extend(prefix, messages[length:])
                return Prompt(ids, node.turn, keys[-1], len(prefix))
        return Prompt(self._codec.render(messages, tools), NO_PARENT, keys[-1], 0)

    def recall(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        prompt_ids: list[int],
        parent_turn: int,
    ) -> Prompt:
        """The prompt of a turn that was captured before; its ids are taken as they are."""
        parent = self._nodes.get(parent_turn)
        shared = len(parent.ids()) if parent is not None else 0
        return Prompt(prompt_ids, parent_turn, _chain(messages, tools)[-1], shared)

    def record(self, prompt: Prompt, turn: int, completion_ids: Sequence[int], reply: Mapping[str, Any]) -> None:
        """Adds a captured turn: later requests that go on after `reply` extend it."""
        parent = self._nodes.get(prompt.parent_turn)
        suffix = array("i", prompt.ids[prompt.shared if parent is not None else 0 :])
        suffix.extend(completion_ids)
        # The newest of several equal answers wins: that is the one a client goes on with.
        node = self._ends[_link(prompt.key, reply, 0)] = _Node(parent, turn, suffix)
        self._nodes[turn] = node


def _chain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[bytes]:
    """keys[i] stands for the tools and the first i messages."""
    start = hashlib.blake2b(json.dumps(tools or None, sort_keys=True).encode(), digest_size=16).digest()
    keys = [start]
    for index, message in enumerate(messages):
        keys.append(_link(keys[-1], message, index))
    return keys


def _link(key: bytes, message: Mapping[str, Any], index: int) -> bytes:
    state = hashlib.blake2b(key, digest_size=16)
    calls = [
        (call["function"]["name"], _canonical(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    # Only what a template shows: ids of calls and names of senders differ between clients.
    shown = (message.get("role"), text_of(message.get("content"), index), calls)
    state.update(json.dumps(shown, ensure_ascii=False).encode(errors="surrogatepass"))
    return state.digest()


def _canonical(arguments: object) -> str:
    if not isinstance(arguments, str):
        return json.dumps(arguments, sort_keys=True)
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments
