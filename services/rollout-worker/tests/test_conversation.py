import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.sandbox_exec import Captured, ExecResult
from longshore_rollout_worker.domain.conversation import (
    BareConversation,
    Command,
    Finish,
    ModelReply,
    ToolConversation,
)
from longshore_rollout_worker.domain.observation import bare_observation, clean_command, tool_observation
from longshore_rollout_worker.domain.vocabulary import Termination


def ended(status: int, stdout: bytes = b"", stderr: bytes = b"", **more: Any) -> ExecResult:
    return ExecResult(status, Captured(stdout, total=len(stdout)), Captured(stderr, total=len(stderr)), **more)


def say(text: str, finish: str = "stop") -> ModelReply:
    return ModelReply({"role": "assistant", "content": text}, finish)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ended(0, b"lots of output"), "exit 0"),
        (ended(1), "exit 1"),
        (ended(1, b"out", b"err\n"), "exit 1 err out"),
        (ended(127, b"", b"sh: 1: foo: not found\n"), "exit 127 sh: 1: foo: n"),
        (ended(2, b"a\nb\n"), "exit 2 a b"),
        (ended(1, b"\xff\x00x"), "exit 1 �x"),
        (ended(-1, signal=11), "exit 139"),
        (ended(-1, b"abc", signal=9, timed_out=True), "exit 124 abc"),
    ],
)
def test_bare_observations(result: ExecResult, text: str) -> None:
    assert bare_observation(result, 13) == text


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 40))
def test_a_bare_observation_is_one_short_line(stdout: bytes, stderr: bytes, chars: int) -> None:
    text = bare_observation(ended(1, stdout, stderr), chars)
    assert text.startswith("exit 1")
    assert "\n" not in text
    assert "\0" not in text
    assert len(text) <= len("exit 1 ") + chars


@given(st.text())
def test_a_command_can_always_be_an_argument(text: str) -> None:
    command = clean_command(text)
    assert "\0" not in command
    command.encode("utf-8")


def test_lone_surrogates_of_a_json_escape_do_not_break_the_call() -> None:
    assert clean_command(json.loads('"echo \\ud800"')) == "echo ?"


def test_bare_messages_keep_what_was_sampled() -> None:
    talk = BareConversation("sys", "do it", 20)
    assert talk.receive(say("ls\x00 -l ")) == (Command("ls -l "),)
    talk.observe(Command("ls -l "), ended(0))
    assert talk.receive(say(" done\n")) == Finish(Termination.AGENT_DONE)
    assert talk.messages == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": "ls\x00 -l "},
        {"role": "user", "content": "exit 0"},
        {"role": "assistant", "content": " done\n"},
    ]


@pytest.mark.parametrize("text", ["", "donee", "DONE", "done now", "echo done"])
def test_only_the_word_done_ends(text: str) -> None:
    assert BareConversation("", "x", 5).receive(say(text)) == (Command(text),)


def tool_call(arguments: str, name: str = "bash", call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Any) -> ModelReply:
    return ModelReply({"role": "assistant", "content": None, "tool_calls": list(calls)}, "tool_calls")


def test_parallel_tool_calls_are_run_in_order_and_each_is_answered() -> None:
    talk = ToolConversation("", "x", 50)
    calls = (tool_call('{"command": "a"}'), tool_call('{"command": "b"}', call_id="c2"))
    assert talk.receive(calling(*calls)) == (Command("a", "c1"), Command("b", "c2"))
    talk.observe(Command("a", "c1"), ended(0, b"out"))
    assert talk.messages[-1]["tool_call_id"] == "c1"
    assert json.loads(talk.messages[-1]["content"]) == {"exit": 0, "stdout": "out"}


@pytest.mark.parametrize(
    "call",
    [
        tool_call("{"),
        tool_call("[" * 5000),
        tool_call("{}"),
        tool_call('{"command": 3}'),
        tool_call('"ls"'),
        tool_call('{"command": "ls"}', name="python"),
        {"id": "c1"},
        "ls",
        None,
    ],
)
def test_a_broken_tool_call_is_answered_and_not_run(call: Any) -> None:
    talk = ToolConversation("", "x", 50)
    [command] = talk.receive(calling(call))  # type: ignore[misc]
    assert command.error.startswith("error: ")
    talk.observe(command, None)
    assert talk.messages[-1]["content"] == command.error


@pytest.mark.parametrize(
    ("finish", "termination"),
    [("stop", Termination.AGENT_DONE), ("length", Termination.TOKEN_LIMIT)],
)
def test_a_message_without_tool_calls_ends(finish: str, termination: Termination) -> None:
    assert ToolConversation("", "x", 5).receive(say("ok", finish)) == Finish(termination)


def test_a_long_output_keeps_head_and_tail() -> None:
    """evalscope#1688: unbounded output of one command filled the context."""
    body = json.loads(tool_observation(ended(0, b"a" * 500 + b"z" * 500, b"warn"), 100))
    assert body["stdout"] == "a" * 50 + "\n[... 900 characters left out ...]\n" + "z" * 50
    assert body["stderr"] == "warn"


@pytest.mark.parametrize("chars", [0, 1, 2])
def test_tiny_observation_limits(chars: int) -> None:
    body = json.loads(tool_observation(ended(0, b"abc"), chars))
    assert "left out" in body["stdout"]
