"""What clients really send is accepted; what cannot be honoured is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.openai_chat import parse_request

RECORDINGS = Path(__file__).parent / "data" / "client-requests"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def _parse(**fields: Any) -> Any:
    return parse_request(json.dumps({"messages": MESSAGES} | fields).encode())


def test_sampling_model_and_logprobs_of_the_client_are_ignored() -> None:
    """rLLM gateway defect 8: a client that sent logprobs false switched capture off."""
    request = _parse(
        model="gpt-9", temperature=0, top_p=0.1, logprobs=False, max_tokens=1, seed=3, frequency_penalty=1, n=1
    )
    assert request == _parse()


def test_common_fields_of_real_clients_are_accepted() -> None:
    request = _parse(
        stream=True,
        stream_options={"include_usage": True},
        tool_choice="auto",
        tools=[TOOL],
        store=False,
        max_completion_tokens=100,
        prompt_cache_key="k",
        reasoning_effort="low",
        parallel_tool_calls=True,
    )
    assert (request.stream, request.include_usage, request.parse_tools) == (True, True, True)
    assert not _parse(tools=[TOOL], tool_choice="none").parse_tools


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("stop", ["\n"]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "bash"}}),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("tools", [{"type": "web_search"}]),
    ],
)
def test_what_would_change_the_answer_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        _parse(**{field: value})
    assert caught.value.details == {"reason": "unsupported_parameter", "field": field}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [{"role": "root", "content": "x"}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": {"a": 1}}',
    ],
)
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_request(body)
    assert caught.value.details["reason"] == "invalid_request"


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_requests_of_real_clients_parse(path: Path) -> None:
    """Bodies that mini-swe-agent, aider, opencode, pi and qwen-code sent."""
    body = json.loads(path.read_text())
    request = parse_request(json.dumps(body).encode())
    assert request.messages == body["messages"]
    assert request.tools == body.get("tools")
