"""Streamed deltas add up to the parsed content, whatever the model samples."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_common.chatml import ChatMLCodec
from longshore_inference_gateway.domain.text_stream import TextStream

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def _encode(codec: ChatMLCodec, text: str) -> list[int]:
    rendered = codec.render([{"role": "user", "content": text}], generation_prompt=False)
    empty = codec.render([{"role": "user", "content": ""}], generation_prompt=False)
    return rendered[len(empty) - 2 : -2]


def _stream(codec: ChatMLCodec, ids: list[int], size: int, hold: bool) -> tuple[list[str], str]:
    stream = TextStream(codec, hold)
    deltas = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    content = codec.parse(ids).content if hold else codec.decode(ids)
    return [*deltas, stream.finish(content)], content


@settings(max_examples=200)
@given(st.lists(st.integers(0, 400), max_size=90), st.integers(1, 7), st.booleans())
def test_deltas_of_any_ids_add_up(model_dir: Path, ids: list[int], size: int, hold: bool) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    ids = [token % codec.vocab_size for token in ids]
    deltas, content = _stream(codec, ids, size, hold)
    assert "".join(deltas) == content


@given(
    st.lists(st.sampled_from(["\n", "text", "é", "日本", "<tool", "_call>", "<", CALL, "</tool_call>", "<tool_call>"])),
    st.integers(1, 7),
)
def test_deltas_around_tool_calls_add_up(model_dir: Path, pieces: list[str], size: int) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    deltas, content = _stream(codec, _encode(codec, "".join(pieces)), size, True)
    assert "".join(deltas) == content


def test_characters_are_not_cut_and_calls_are_held_back(model_dir: Path) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    deltas, _ = _stream(codec, _encode(codec, "日本 ok"), 1, False)
    assert "\ufffd" not in "".join(deltas)
    deltas, content = _stream(codec, _encode(codec, f"so:\n{CALL}"), 1, True)
    assert content == "so:"
    assert "".join(deltas) == "so:"


def test_text_flows_before_the_end(model_dir: Path) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    deltas, content = _stream(codec, _encode(codec, "wc -l < data.txt > answer.txt " * 4), 1, True)
    assert len([delta for delta in deltas if delta]) > 10
    assert deltas[-1] != content
