"""Prefix tree: splices, branches, and ids that are never encoded twice."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway_tiny_model import CORPUS
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.chatml import ChatMLCodec, ParsedMessage
from longshore_inference_gateway.domain.lineage import Lineage

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
END = 0


class WordCodec:
    """A vocabulary in which "he" + "llo" encodes to one id: [he, llo] = [1, 2], [hello] = [3]."""

    tokenizer_digest = template_digest = "sha256:test"
    stop_ids = (END,)
    words = {1: "he", 2: "llo", 3: "hello", 4: "s", 5: "u", 6: "more"}

    def encode(self, text: str) -> list[int]:
        ids, rest = [], text
        while rest:
            token = max(
                (t for t, word in self.words.items() if rest.startswith(word)), key=lambda t: len(self.words[t])
            )
            ids.append(token)
            rest = rest.removeprefix(self.words[token])
        return ids

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        return [token for message in messages for token in [*self.encode(str(message["content"])), END]]

    def extend(self, prefix_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> list[int]:
        ids = list(prefix_ids)
        return (ids if ids[-1] == END else [*ids, END]) + self.render(messages)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words.get(token, "") for token in ids)

    def parse(self, ids: Sequence[int]) -> ParsedMessage:
        return ParsedMessage(self.decode(ids), ())


def test_trl_5224_sampled_ids_are_kept_and_not_encoded_again() -> None:
    """TRL #5224: [he, llo] was sampled; encoding its text again gives [hello], other ids than those trained on."""
    codec = WordCodec()
    lineage = Lineage(codec)
    first = lineage.prompt([SYSTEM, USER], None)
    assert codec.encode("hello") == [3]
    reply = {"role": "assistant", "content": "hello"}
    lineage.record(first, 0, [1, 2, END], reply)
    second = lineage.prompt([SYSTEM, USER, reply, {"role": "user", "content": "more"}], None)
    assert second.parent_turn == 0
    assert second.ids == [*first.ids, 1, 2, END, 6, END]


def test_an_answer_that_the_client_changed_starts_a_new_branch() -> None:
    lineage = Lineage(WordCodec())
    first = lineage.prompt([SYSTEM, USER], None)
    lineage.record(first, 0, [1, 2, END], {"role": "assistant", "content": "hello"})
    changed = {"role": "assistant", "content": "he"}
    prompt = lineage.prompt([SYSTEM, USER, changed, {"role": "user", "content": "more"}], None)
    assert prompt.parent_turn == -1
    assert prompt.ids == [4, END, 5, END, 1, END, 6, END]


def test_rllm_774_parallel_subagents_do_not_overwrite_each_other() -> None:
    """rLLM #774, #868: one accumulator per session let parallel subagents clobber it."""
    lineage = Lineage(WordCodec())
    branches = []
    for turn, text in enumerate(("he", "llo", "more")):
        messages = [SYSTEM, {"role": "user", "content": text}]
        prompt = lineage.prompt(messages, None)
        reply = {"role": "assistant", "content": "hello"}
        lineage.record(prompt, turn, [1, 2], reply)
        branches.append((prompt, [*messages, reply, USER]))
    for turn, (prompt, continued) in enumerate(branches):
        following = lineage.prompt(continued, None)
        assert following.parent_turn == turn
        assert following.ids == [*prompt.ids, 1, 2, END, 5, END]


def test_the_longest_ancestor_is_extended_and_compaction_branches() -> None:
    lineage = Lineage(WordCodec())
    messages: list[dict[str, Any]] = [SYSTEM, USER]
    for turn in range(3):
        prompt = lineage.prompt(messages, None)
        assert prompt.parent_turn == turn - 1
        reply = {"role": "assistant", "content": "he"}
        lineage.record(prompt, turn, [1, END], reply)
        messages = [*messages, reply, USER]
    assert lineage.prompt(messages[:6], None).parent_turn == 1, "going back continues the older turn"
    compacted = [SYSTEM, {"role": "user", "content": "more"}]
    assert lineage.prompt(compacted, None).parent_turn == -1


def test_equal_answers_both_keep_their_descendants() -> None:
    lineage = Lineage(WordCodec())
    reply = {"role": "assistant", "content": "hello"}
    first, second = (lineage.prompt([SYSTEM, USER], None) for _ in range(2))
    lineage.record(first, 0, [1, 2], reply)
    child = lineage.prompt([SYSTEM, USER, reply, USER], None)
    lineage.record(second, 1, [3], reply)
    lineage.record(child, 2, [1], {"role": "assistant", "content": "he"})
    grandchild = lineage.prompt([SYSTEM, USER, reply, USER, {"role": "assistant", "content": "he"}, USER], None)
    assert grandchild.parent_turn == 2
    assert grandchild.ids == [*first.ids, 1, 2, END, 5, END, 1, END, 5, END]
    assert lineage.prompt([SYSTEM, USER, reply, USER], None).parent_turn == 1


def test_other_tools_are_another_prompt() -> None:
    lineage = Lineage(WordCodec())
    tools = [{"type": "function", "function": {"name": "bash"}}]
    reply = {"role": "assistant", "content": "he"}
    lineage.record(lineage.prompt([SYSTEM, USER], tools), 0, [1], reply)
    assert lineage.prompt([SYSTEM, USER, reply, USER], tools).parent_turn == 0
    assert lineage.prompt([SYSTEM, USER, reply, USER], None).parent_turn == -1


def test_part_lists_and_reserialised_arguments_are_the_same_message() -> None:
    lineage = Lineage(WordCodec())
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1, "b": 2}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    lineage.record(lineage.prompt([SYSTEM, USER], None), 0, [1], reply)
    same_call = {"id": "other", "type": "function", "function": {"name": "bash", "arguments": '{"b":2,"a":1}'}}
    sent = {"role": "assistant", "content": [], "tool_calls": [same_call], "name": "me"}
    parts = {"role": "user", "content": [{"type": "text", "text": "u"}]}
    assert lineage.prompt([SYSTEM, parts, sent, USER], None).parent_turn == 0


@given(st.data())
def test_every_turn_extends_exactly_what_was_sampled(model_dir: Any, data: st.DataObject) -> None:
    """Random trees with a real BPE tokenizer: each child's ids begin with its parent's prompt and completion."""
    codec = ChatMLCodec.from_dir(model_dir)
    lineage = Lineage(codec)
    texts = st.sampled_from(CORPUS)
    known: dict[int, tuple[list[dict[str, Any]], list[int]]] = {}
    for turn in range(data.draw(st.integers(2, 6))):
        parent = data.draw(st.sampled_from([None, *known]))
        start = known[parent][0] if parent is not None else [{"role": "user", "content": f"start {turn}"}]
        messages = [*start, {"role": "user", "content": data.draw(texts)}]
        prompt = lineage.prompt(messages, None)
        assert prompt.parent_turn == (-1 if parent is None else parent)
        if parent is not None:
            assert prompt.ids[: len(known[parent][1])] == known[parent][1]
        sampled = data.draw(st.lists(st.integers(0, codec.vocab_size - 1), min_size=1, max_size=8))
        # The turn's number makes answers unlike: equal ones are a test of their own.
        reply = {"role": "assistant", "content": f"{turn} {codec.decode(sampled)}"}
        lineage.record(prompt, turn, sampled, reply)
        known[turn] = ([*messages, reply], [*prompt.ids, *sampled])
