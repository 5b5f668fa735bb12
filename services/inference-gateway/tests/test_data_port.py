"""Chat completions over real sockets in front of an engine that can be told to fail."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard
from gateway_fakes import FakeEngine, FakeTrajectory
from gateway_harness import Gateway, running_gateway, settings

from longshore.common.v1 import outcome_pb2
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore_common.chatml import ChatMLCodec

SYSTEM = {"role": "system", "content": "Use the shell."}
TASK = {"role": "user", "content": "Count the lines"}
MESSAGES = [SYSTEM, TASK]
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


@pytest.fixture
async def served(gateway: Gateway, model_dir: Path) -> Gateway:
    await gateway.publish(model_dir, 0)
    return gateway


def _code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


def _ids(codec: ChatMLCodec, text: str) -> list[int]:
    return codec.render([{"role": "user", "content": text}], generation_prompt=False)[4:-1]


async def test_a_turn_is_captured_with_everything(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory, model_dir: Path
) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    session = await served.open(sampling=outcome_pb2.Sampling(temperature=0.7, max_tokens=5, seed=3))
    assert (session.model, session.start_version, session.context_length) == ("demo", 0, 512)
    status, answer = await served.chat(session.token, MESSAGES, temperature=0, top_p=0.1, model="gpt", logprobs=False)
    assert status == 200
    (sent,) = engines[0].requests
    assert sent["token_ids"] == codec.render(MESSAGES)
    assert sent["model"] == "demo-v0"
    parameters = sent["sampling_params"]
    assert (parameters["temperature"], parameters["max_tokens"], parameters["logprobs"]) == (pytest.approx(0.7), 5, 0)
    assert "top_p" not in parameters
    (turn,) = trajectory.of("a-0")
    assert (turn.turn, turn.parent_turn, turn.status) == (0, -1, pb.TURN_STATUS_OK)
    assert list(turn.prompt_ids) == sent["token_ids"]
    assert list(turn.completion_ids) == [10, 11, 1]
    assert list(turn.logprobs) == pytest.approx([-0.5, -0.51, -0.52])
    assert [(span.first_token, span.version) for span in turn.versions] == [(0, 0)]
    assert turn.trainable
    assert turn.sampling.seed == parameters["seed"]
    assert (turn.tokenizer_digest, turn.template_digest) == (codec.tokenizer_digest, codec.template_digest)
    assert turn.base_digest.startswith("sha256:")
    assert json.loads(zstandard.decompress(turn.request_zst))["top_p"] == 0.1
    assert json.loads(zstandard.decompress(turn.response_zst)) == answer
    assert answer["usage"] == {
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": 3,
        "total_tokens": len(turn.prompt_ids) + 3,
    }
    assert turn.received_at_ms <= turn.first_token_at_ms <= turn.done_at_ms


async def test_the_second_turn_extends_the_first(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory
) -> None:
    session = await served.open()
    _, answer = await served.chat(session.token, MESSAGES)
    follow_up = [*MESSAGES, answer["choices"][0]["message"], {"role": "user", "content": "exit 0"}]
    await served.chat(session.token, follow_up)
    first, second = trajectory.of("a-0")
    joined = [*first.prompt_ids, *first.completion_ids]
    assert second.parent_turn == 0
    assert list(second.prompt_ids)[: len(joined)] == joined
    totals = await served.close(session.session_id)
    assert (totals.turns, totals.completion_tokens, totals.capture_complete) == (2, 6, True)
    assert totals == await served.close(session.session_id), "closing again tells the same"
    status, answer = await served.chat(session.token, MESSAGES)
    assert (status, _code(answer)) == (401, "invalid_token")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_turn_is_durable_before_the_last_byte(
    served: Gateway, trajectory: FakeTrajectory, stream: bool
) -> None:
    session = await served.open()
    appending, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        appending.set()
        await go_on.wait()

    trajectory.before_append = hold
    call = asyncio.create_task(served.chat_raw(session.token, MESSAGES, stream=stream))
    await asyncio.wait_for(appending.wait(), 5)
    await asyncio.sleep(0.1)
    assert not call.done()
    go_on.set()
    status, raw = await call
    assert status == 200
    assert raw.endswith(b"data: [DONE]\n\n") is stream


async def test_streamed_text_equals_the_whole_answer(
    served: Gateway, engines: list[FakeEngine], model_dir: Path
) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    engines[0].answers = [[*_ids(codec, "wc -l < data.txt > é.txt"), 1]]
    session = await served.open(sampling=outcome_pb2.Sampling(temperature=1.0))
    _, whole = await served.chat(session.token, MESSAGES)
    status, raw = await served.chat_raw(session.token, MESSAGES, stream=True, stream_options={"include_usage": True})
    assert status == 200
    chunks = [json.loads(line[6:]) for line in raw.decode().split("\n\n")[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    assert len([delta for delta in deltas if delta]) > 3
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_come_back_as_tool_calls(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory, model_dir: Path, stream: bool
) -> None:
    codec = ChatMLCodec.from_dir(model_dir)
    text = 'ok\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
    engines[0].answers = [[*_ids(codec, text), 1], [10, 1]]
    session = await served.open(sampling=outcome_pb2.Sampling(temperature=1.0))
    status, raw = await served.chat_raw(session.token, MESSAGES, tools=[BASH], tool_choice="auto", stream=stream)
    assert status == 200
    if stream:
        chunks = [json.loads(line[6:]) for line in raw.decode().split("\n\n")[:-2]]
        (calls,) = [c["choices"][0]["delta"]["tool_calls"] for c in chunks if "tool_calls" in c["choices"][0]["delta"]]
        content = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        finish = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = json.loads(raw)["choices"][0]
        calls, content, finish = choice["message"]["tool_calls"], choice["message"]["content"], choice["finish_reason"]
    assert (content, finish) == ("ok", "tool_calls")
    assert calls[0]["function"] == {"name": "bash", "arguments": '{"command": "ls -la"}'}
    call = {key: value for key, value in calls[0].items() if key != "index"}
    reply = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "a.txt"}]}
    await served.chat(session.token, [*MESSAGES, reply, result], tools=[BASH])
    first, second = trajectory.of("a-0")
    assert (first.finish_reason, second.parent_turn) == ("tool_calls", 0)


async def test_limits_have_their_own_codes(served: Gateway, engines: list[FakeEngine]) -> None:
    engines[0].answers = [[10] * 50]
    session = await served.open(max_session_tokens=30)
    _, answer = await served.chat(session.token, MESSAGES)
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["choices"][0]["finish_reason"] == "length"
    _, answer = await served.chat(session.token, [TASK])
    assert answer["usage"]["completion_tokens"] == 6, "only the rest of the session's tokens"
    status, answer = await served.chat(session.token, MESSAGES, user="again")
    assert (status, _code(answer)) == (400, "session_token_limit")
    long = await served.open("a-1")
    status, answer = await served.chat(long.token, [{"role": "user", "content": "many words " * 500}])
    assert (status, _code(answer)) == (400, "context_length_exceeded")
    status, answer = await served.chat(long.token, MESSAGES, n=2)
    assert (status, _code(answer), answer["error"]["param"]) == (400, "unsupported_parameter", "n")
    status, answer = await served.chat(long.token, [{"role": "user", "content": [{"type": "image_url"}]}])
    assert status == 400


async def test_ports_refuse_strangers(served: Gateway) -> None:
    for headers in ({}, {"authorization": "Basic x"}, {"authorization": "Bearer wrong"}):
        async with served.http.post(f"{served.url}/v1/chat/completions", json={}, headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (401, "invalid_token")
    session = await served.open()
    headers = {"authorization": f"Bearer {session.token}"}
    async with served.http.get(f"{served.url}/v1/models", headers=headers) as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["demo"]
    async with served.http.get(f"{served.url}/healthz") as response:
        assert response.status == 200
    async with served.http.get(f"{served.url}/metrics") as response:
        assert response.status == 404


async def test_rllm_707_a_request_sent_again_while_in_flight_is_one_turn(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory
) -> None:
    """rLLM #707, #727: cut connections led to resends, which doubled or reset turns."""
    engines[0].hold = asyncio.Event()
    session = await served.open()
    calls = [asyncio.create_task(served.chat(session.token, MESSAGES)) for _ in range(3)]
    await asyncio.sleep(0.2)
    engines[0].hold.set()
    answers = [answer for _, answer in await asyncio.gather(*calls)]
    assert answers[0] == answers[1] == answers[2]
    assert len(engines[0].requests) == len(trajectory.of("a-0")) == 1
    await served.chat(session.token, MESSAGES)
    assert len(trajectory.of("a-0")) == 2, "once delivered, the same request is a new branch"
    await served.chat(session.token, MESSAGES, headers={"x-stainless-retry-count": "1"})
    assert len(trajectory.of("a-0")) == 2, "unless its client says that it retries"


@pytest.mark.parametrize("stream", [False, True])
async def test_rllm_727_an_answer_that_was_not_delivered_waits_for_the_resend(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory, stream: bool
) -> None:
    engines[0].hold = asyncio.Event()
    session = await served.open()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(served.chat_raw(session.token, MESSAGES, stream=stream), 0.2)
    engines[0].hold.set()
    while not trajectory.of("a-0"):
        await asyncio.sleep(0.01)
    status, raw = await served.chat_raw(session.token, MESSAGES, stream=stream)
    assert status == 200
    assert b"stop" in raw
    assert len(engines[0].requests) == len(trajectory.of("a-0")) == 1


async def test_rllm_816_an_answer_without_all_logprobs_is_incomplete_and_untrainable(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory
) -> None:
    engines[0].drop_logprobs = 1
    session = await served.open()
    status, _ = await served.chat(session.token, MESSAGES)
    assert status == 200
    (turn,) = trajectory.of("a-0")
    assert (turn.status, turn.trainable) == (pb.TURN_STATUS_CAPTURE_INCOMPLETE, False)
    assert "3 token ids but 2 logprobs" in turn.untrainable_reason
    assert not (await served.close(session.session_id)).capture_complete


@pytest.mark.parametrize(
    ("failure", "stream"), [("status", False), ("status", True), ("die", False), ("die", True), ("half", True)]
)
async def test_an_engine_that_fails_is_a_503_and_an_error_turn(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory, failure: str, stream: bool
) -> None:
    """rLLM gateway defect 7: non-200 bodies were stored as empty traces."""
    engines[0].fail_generate = failure
    session = await served.open()
    status, raw = await served.chat_raw(session.token, MESSAGES, stream=stream)
    if failure == "half":
        assert b'"code": "engine_unavailable"' in raw
        assert b"[DONE]" not in raw
    else:
        assert (status, _code(json.loads(raw))) == (503, "engine_unavailable")
    (turn,) = trajectory.of("a-0")
    assert (turn.status, turn.trainable, turn.finish_reason) == (pb.TURN_STATUS_ERROR, False, "error")
    assert not turn.completion_ids
    engines[0].fail_generate = ""
    status, _ = await served.chat(session.token, MESSAGES)
    assert status == 200
    assert [turn.turn for turn in trajectory.of("a-0")] == [0, 1]
    assert (await served.close(session.session_id)).capture_complete


async def test_a_turn_that_could_not_be_stored_is_stored_at_the_resend_and_not_sampled_again(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory
) -> None:
    session = await served.open()
    # Two tries of ours, each with gRPC's own.
    trajectory.fail_next = 1000
    status, answer = await served.chat(session.token, MESSAGES)
    assert (status, _code(answer)) == (503, "capture_failed")
    assert not trajectory.turns
    trajectory.fail_next = 0
    status, answer = await served.chat(session.token, MESSAGES)
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "stop")
    assert len(engines[0].requests) == 1
    assert [turn.turn for turn in trajectory.of("a-0")] == [0]
    assert (await served.close(session.session_id)).capture_complete


async def test_a_lost_turn_makes_the_capture_incomplete(served: Gateway, trajectory: FakeTrajectory) -> None:
    session = await served.open()
    trajectory.fail_next = 1000
    await served.chat(session.token, MESSAGES)
    assert not (await served.close(session.session_id)).capture_complete


async def test_an_older_lease_epoch_is_fenced(served: Gateway, trajectory: FakeTrajectory) -> None:
    old = await served.open(epoch=1)
    await served.chat(old.token, MESSAGES)
    new = await served.open(epoch=2)
    status, answer = await served.chat(old.token, MESSAGES, user="x")
    assert (status, _code(answer)) == (409, "session_fenced")
    status, _ = await served.chat(new.token, MESSAGES)
    assert status == 200
    assert [turn.turn for turn in trajectory.of("a-0", 2)] == [0]
    trajectory.epochs["a-0"] = 3
    status, answer = await served.chat(new.token, MESSAGES, user="y")
    assert (status, _code(answer)) == (409, "session_fenced"), "also when only the store knows the newer epoch"


async def test_closing_cuts_off_running_calls_and_captures_them(
    served: Gateway, engines: list[FakeEngine], trajectory: FakeTrajectory
) -> None:
    engines[0].hold = asyncio.Event()
    session = await served.open()
    call = asyncio.create_task(served.chat(session.token, MESSAGES))
    while not engines[0].requests:
        await asyncio.sleep(0.01)
    await asyncio.wait_for(served.close(session.session_id), 5)
    status, _ = await call
    assert status == 503
    (turn,) = trajectory.of("a-0")
    assert (turn.status, turn.finish_reason) == (pb.TURN_STATUS_ERROR, "abort")
    await asyncio.sleep(0.05)
    assert engines[0].aborted == 1


async def test_two_sessions_of_one_attempt_share_turn_numbers(served: Gateway, trajectory: FakeTrajectory) -> None:
    """OpenSession that is sent again after a lost answer must not overwrite turns."""
    first = await served.open()
    await served.chat(first.token, MESSAGES)
    second = await served.open()
    await served.chat(second.token, MESSAGES)
    await served.close(first.session_id)
    await served.close(second.session_id)
    third = await served.open()
    await served.chat(third.token, MESSAGES)
    assert [turn.turn for turn in trajectory.of("a-0")] == [0, 1, 2]


async def test_waiting_is_queued_time_and_too_much_of_it_a_429(
    tmp_path: Path, trajectory_address: str, engines: list[FakeEngine], model_dir: Path
) -> None:
    config = settings(
        tmp_path,
        trajectory_address,
        engine_mode="external",
        engine_addresses=(engines[0].address,),
        engine_max_num_seqs=1,
        queue_limit=1,
    )
    async with running_gateway(config) as gateway:
        await gateway.publish(model_dir, 0)
        engines[0].hold = asyncio.Event()
        session = await gateway.open()
        first = asyncio.create_task(gateway.chat(session.token, MESSAGES))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(_queued_ms(gateway, session.token))
        await asyncio.sleep(0.2)
        async with gateway.post(session.token, MESSAGES, user="third") as response:
            assert (response.status, response.headers["retry-after"]) == (429, "1")
            assert (await response.json())["error"]["code"] == "queue_full"
        engines[0].hold.set()
        assert (await first)[0] == 200
        assert await second > 100
        totals = await gateway.close(session.session_id)
        assert totals.queued_s > 0.1, "time in the queue, by another clock than the sleep above"
        assert totals.turns == 3, "the refused call is an error turn"


async def _queued_ms(gateway: Gateway, token: str) -> int:
    async with gateway.post(token, MESSAGES, user="second") as response:
        await response.read()
        return int(response.headers["x-longshore-queued-ms"])


async def test_an_expired_token_stops_working(served: Gateway, trajectory: FakeTrajectory) -> None:
    session = await served.open(ttl_s=0.3)
    assert (await served.chat(session.token, MESSAGES))[0] == 200
    await asyncio.sleep(0.4)
    status, answer = await served.chat(session.token, MESSAGES)
    assert (status, _code(answer)) == (401, "invalid_token")
    assert (await served.close(session.session_id)).turns == 1


async def test_untrainable_sampling_is_served_and_marked(served: Gateway, trajectory: FakeTrajectory) -> None:
    session = await served.open(sampling=outcome_pb2.Sampling(temperature=0.0, max_tokens=4))
    assert (await served.chat(session.token, MESSAGES))[0] == 200
    (turn,) = trajectory.of("a-0")
    assert (turn.status, turn.trainable) == (pb.TURN_STATUS_OK, False)
    assert "greedy" in turn.untrainable_reason


async def test_a_body_that_is_too_large_is_refused(
    tmp_path: Path, trajectory_address: str, engines: list[FakeEngine], model_dir: Path
) -> None:
    addresses = (engines[0].address,)
    config = settings(
        tmp_path, trajectory_address, engine_mode="external", engine_addresses=addresses, max_body_bytes=1000
    )
    async with running_gateway(config) as gateway:
        await gateway.publish(model_dir, 0)
        session = await gateway.open()
        try:
            status, answer = await gateway.chat(session.token, [{"role": "user", "content": "x" * 5000}])
        except aiohttp.ClientError:
            pytest.fail("the refusal did not arrive")
        assert (status, _code(answer)) == (400, "invalid_request")
