"""One attempt end to end: the real worker, fakes of the services around it on real sockets."""

import asyncio
import json
from typing import Any

import pytest

from longshore.agent.v1 import agent_pb2
from longshore.common.v1 import outcome_pb2
from longshore.sandbox.v1 import sandbox_pb2
from longshore.trajectory.v1 import trajectory_pb2
from longshore.verifier.v1 import verifier_pb2
from longshore_common.digests import digest
from longshore_common.errors import (
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidSpec,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)


def error_body(code: str) -> dict[str, Any]:
    return {"error": {"message": f"refused: {code}", "type": "t", "code": code}}


async def test_an_attempt_goes_from_lease_to_seal(stack: Any) -> None:
    stack.gateway.script = ["wc -l < a > b\x00", "done"]
    stack.agent.run = lambda _: (agent_pb2.Exited(exit_code=2), b"out\n", b"sh: no\nfile\n")
    stack.add()
    await stack.start()
    await stack.ended()

    assert stack.agent.commands == [["sh", "-c", "wc -l < a > b"]]
    assert stack.agent.requests[0].cwd == "/app"
    assert stack.agent.requests[0].user == "dev"
    assert stack.agent.tokens == ["Bearer token-g-0-1"]
    assert stack.gateway.calls[1]["messages"] == [
        {"role": "system", "content": "Use the shell."},
        {"role": "user", "content": "Make a file."},
        {"role": "assistant", "content": "wc -l < a > b\x00"},
        {"role": "user", "content": "exit 2 sh: no file"},
    ]
    assert stack.gateway.headers[0]["authorization"] == "Bearer key-g-0"
    [verify] = stack.verifier.requests
    assert (verify.sandbox_id, verify.agent_token, verify.regrade) == ("sb-g-0-1", "token-g-0-1", True)
    [seal] = stack.trajectory.sealed
    assert (seal.attempt_id, seal.lease_epoch, seal.start_version) == ("g-0", 1, 3)
    assert seal.outcome.scored.reward == 1.0
    assert stack.trajectory.terminations() == ["agent_done"]
    assert seal.reward.file_name == "reward.txt"
    [done] = stack.controller.completed
    assert not done.HasField("retry")
    assert stack.gateway.closed == ["s-g-0-1"]
    assert stack.scheduler.deleted == ["sb-g-0-1"]


async def test_the_identity_says_what_the_attempt_was_made_of(stack: Any) -> None:
    stack.add()
    await stack.start()
    await stack.ended()
    identity = stack.trajectory.sealed[0].identity
    assert identity.limits_digest == digest(
        {"cpus": 1.0, "memory_mb": 256, "storage_mb": 100, "max_processes": 64, "max_file_mb": 50}
    )
    assert (identity.harness_name, identity.harness_version) == ("shell", "1")
    assert not identity.sampling.HasField("seed")
    assert stack.gateway.opened[0].sampling.seed == 7
    assert (identity.base_digest, identity.tokenizer_digest, identity.template_digest) == (
        "sha256:b",
        "sha256:t",
        "sha256:c",
    )
    assert (identity.image_digest, identity.verifier_digest) == ("sha256:image", "sha256:v")


async def test_numbers_written_differently_are_the_same_harness(stack: Any) -> None:
    stack.add("g-0", harness_config_json='{"protocol":"bare","observation_chars":12,"command_timeout_s":2}')
    stack.add("g-1", harness_config_json='{"command_timeout_s":2.0,"observation_chars":12}')
    await stack.start()
    await stack.ended(2)
    first, second = (seal.identity.harness_config_digest for seal in stack.trajectory.sealed)
    assert first == second


@pytest.mark.parametrize(
    ("script", "lease", "termination", "turns"),
    [
        (["a", "b", "c"], {"max_turns": 2}, "turn_limit", 2),
        (["a", "b", "c"], {"max_tokens": 10}, "token_limit", 2),
        (["a", (400, {}, error_body("context_length_exceeded"))], {}, "context_exceeded", 1),
        ([(400, {}, error_body("session_token_limit"))], {}, "token_limit", 0),
        (["done\n"], {}, "agent_done", 1),
    ],
)
async def test_limits_end_the_agent_and_its_state_is_graded(
    stack: Any, script: list[Any], lease: dict[str, Any], termination: str, turns: int
) -> None:
    stack.gateway.script = script
    stack.add(**lease)
    await stack.start()
    await stack.ended()
    assert stack.trajectory.terminations() == [termination]
    assert len(stack.verifier.requests) == 1


async def test_an_agent_timeout_is_graded_and_not_called_done(stack: Any) -> None:
    """rllm#710: 76 of 178 timeouts were recorded as env_done."""
    stack.gateway.script = ["sleep 60", "sleep 60"]
    stack.agent.delay_s = 60.0
    stack.add(agent_timeout_s=0.3)
    await stack.start()
    await stack.ended()
    assert stack.trajectory.terminations() == ["agent_timeout"]
    assert stack.trajectory.sealed[0].outcome.scored.reward == 1.0
    assert stack.agent.requests[0].timeout_s < 0.31


async def test_the_agents_clock_stops_while_a_call_is_queued(stack: Any) -> None:
    stack.gateway.delay_s = 0.3
    headers = {"x-longshore-queued-ms": "290"}
    from_queue = {"choices": [{"message": {"role": "assistant", "content": "true"}}], "usage": {"completion_tokens": 1}}
    stack.gateway.script = [(200, headers, from_queue)] * 3
    stack.add(agent_timeout_s=0.5, max_turns=3)
    await stack.start()
    await stack.ended()
    assert stack.trajectory.terminations() == ["turn_limit"]
    assert stack.trajectory.sealed[0].agent_s < 0.3


async def test_a_full_queue_is_waited_out_and_the_resent_call_is_marked(stack: Any) -> None:
    stack.gateway.script = [(429, {"retry-after": "0.05"}, error_body("queue_full")), "done"]
    stack.add(agent_timeout_s=0.2)
    await stack.start()
    await stack.ended()
    assert stack.trajectory.terminations() == ["agent_done"]
    assert "x-stainless-retry-count" not in stack.gateway.headers[0]
    assert stack.gateway.headers[1]["x-stainless-retry-count"] == "1"


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        ((401, {}, error_body("invalid_token")), "gateway"),
        ((503, {}, error_body("engine_unavailable")), "engine"),
        ((429, {}, error_body("queue_full")), "gateway"),
        ((500, {}, b"<html>"), "gateway"),
        ((200, {}, {"choices": []}), "gateway"),
        ((200, {}, b"not json"), "gateway"),
        ((400, {}, error_body("unsupported_parameter")), "harness_setup"),
    ],
)
async def test_model_faults_fail_the_attempt_without_a_reward(stack: Any, step: Any, failure: str) -> None:
    stack.gateway.script = [step] * 10
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == [failure]
    assert stack.trajectory.sealed == []
    assert stack.verifier.requests == []
    assert stack.gateway.closed == ["s-g-0-1"]


async def test_a_fenced_session_writes_nothing_more(stack: Any, wait_until: Any) -> None:
    stack.gateway.script = [(409, {}, error_body("session_fenced"))]
    stack.add()
    await stack.start()
    await wait_until(lambda: stack.scheduler.deleted)
    assert stack.trajectory.sealed == []
    assert stack.controller.completed == []


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (QuotaExceeded("no room", which="sandboxes"), "quota"),
        (InvalidSpec("Dockerfile:3: FROM unknown"), "sandbox_start"),
        (Internal("bwrap"), "sandbox_start"),
        (Unavailable("pull", details={"end_reason": "image_pull"}, retryable=False), "image_pull"),
        (Internal("evicted", details={"end_reason": "evicted"}), "evicted"),
    ],
)
async def test_a_refused_sandbox_is_a_typed_failure_and_the_session_is_closed(
    stack: Any, error: Exception, failure: str
) -> None:
    stack.scheduler.error = error
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == [failure]
    assert str(error) in stack.controller.completed[0].retry.evidence
    assert stack.gateway.closed == ["s-g-0-1"]


async def test_a_refused_session_gives_the_sandbox_back(stack: Any) -> None:
    stack.gateway.error = NotFound("no alias pol")
    stack.scheduler.claim_delay_s = 0.1
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["gateway"]
    assert stack.scheduler.deleted == ["sb-g-0-1"]


async def test_an_unknown_task_is_a_set_up_failure(stack: Any) -> None:
    stack.catalog.error = NotFound("no task")
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["harness_setup"]


@pytest.mark.parametrize(
    "lease",
    [
        {"harness_name": "codex"},
        {"harness_config_json": '{"protocol": "telepathy"}'},
        {"harness_config_json": '{"protokol": "bare"}'},
    ],
)
async def test_a_harness_that_this_worker_cannot_run_is_a_set_up_failure(stack: Any, lease: dict[str, Any]) -> None:
    stack.add(**lease)
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["harness_setup"]


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (0, "sandbox_lost"),
        (sandbox_pb2.END_REASON_NODE_LOST, "sandbox_lost"),
        (sandbox_pb2.END_REASON_EVICTED, "evicted"),
    ],
)
async def test_a_sandbox_that_goes_away_is_a_failure_of_the_infrastructure(
    stack: Any, reason: int, failure: str
) -> None:
    stack.gateway.script = ["ls"]
    stack.agent.error = Internal("gone")
    stack.scheduler.end_reason = reason
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == [failure]


async def test_a_sandbox_out_of_memory_is_left_to_the_verifier(stack: Any) -> None:
    stack.gateway.script = ["cat /dev/zero | tail"]
    stack.agent.error = Internal("gone")
    stack.scheduler.end_reason = sandbox_pb2.END_REASON_OOM
    stack.verifier.answer = verifier_pb2.VerifyResponse(
        reward=outcome_pb2.Reward(reward=0.0, regraded=True), agent_broke_verifier=True
    )
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.trajectory.terminations() == ["agent_broke_verifier"]
    assert stack.controller.failures() == []


async def test_a_command_that_cannot_start_is_shown_to_the_model(stack: Any) -> None:
    stack.gateway.script = ["x" * 200_000, "done"]
    stack.agent.error = InvalidSpec("too long")
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.gateway.calls[1]["messages"][-1]["content"] == "exit 126 too long"
    assert stack.trajectory.terminations() == ["agent_done"]


async def test_a_verifier_failure_is_absent_and_never_zero(stack: Any) -> None:
    """OpenEnv#1025, allenai/open-instruct#1887: a crash of the grader counted as reward 0."""
    failed = outcome_pb2.Failed(failure=outcome_pb2.FAILURE_REWARD_MALFORMED, evidence="NaN")
    stack.verifier.answer = verifier_pb2.VerifyResponse(failed=failed)
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["reward_malformed"]
    assert stack.controller.completed[0].retry.evidence == "NaN"
    assert stack.trajectory.sealed == []


async def test_a_verifier_that_cannot_be_reached_is_verifier_setup(stack: Any) -> None:
    """SWE-bench_Pro-os#111: a client's timeout was scored as unresolved."""
    stack.verifier.error = DeadlineExceeded("no answer")
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["verifier_setup"]


async def test_an_attempt_to_train_on_with_holes_in_its_capture_fails_before_grading(stack: Any) -> None:
    stack.gateway.capture_complete = False
    stack.add("g-0")
    stack.add("g-1", purpose=trajectory_pb2.PURPOSE_EVAL)
    await stack.start()
    await stack.ended(2)
    assert stack.controller.failures() == ["capture_incomplete"]
    assert [seal.attempt_id for seal in stack.trajectory.sealed] == ["g-1"]


async def test_a_seal_of_an_older_epoch_is_dropped(stack: Any, wait_until: Any) -> None:
    older = {"epoch": "1", "newest_epoch": "2"}
    stack.trajectory.errors = [PermissionDenied("epoch 1 is older than 2", details=older)]
    stack.add()
    await stack.start()
    await wait_until(lambda: stack.scheduler.deleted)
    assert stack.controller.completed == []


async def test_an_attempt_that_was_discarded_meanwhile_only_frees_its_lease(stack: Any) -> None:
    stack.trajectory.errors = [Conflict("it is already discarded (stale)")]
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.trajectory.sealed == []
    assert stack.controller.failures() == []


async def test_a_seal_is_sent_again_when_the_store_is_away(stack: Any) -> None:
    stack.trajectory.errors = [Unavailable("restarting"), Unavailable("restarting")]
    stack.add()
    await stack.start()
    await stack.ended()
    assert len(stack.trajectory.sealed) == 1
    assert stack.controller.failures() == []


async def test_services_that_restart_are_waited_for(stack: Any, wait_until: Any) -> None:
    """An upgrade takes them all away for some seconds; an attempt has two retries, used up in less."""
    away = Unavailable("restarting")
    stack.scheduler.error = stack.gateway.error = stack.catalog.error = stack.verifier.error = away
    stack.add()
    await stack.start()
    await asyncio.sleep(2.5)
    assert stack.controller.completed == []
    stack.scheduler.error = stack.gateway.error = stack.catalog.error = None
    await wait_until(lambda: stack.verifier.requests)
    await asyncio.sleep(2.5)
    stack.verifier.error = None
    await wait_until(lambda: stack.controller.completed and stack.scheduler.deleted)
    assert stack.controller.failures() == []
    assert len(stack.trajectory.sealed) == 1
    assert stack.gateway.closed == ["s-g-0-1"]


async def test_a_service_that_stays_away_is_a_failure_of_its_name(stack: Any) -> None:
    stack.gateway.error = Unavailable("gone")
    stack.add()
    await stack.start(service_patience_s=0.1)
    await stack.ended()
    assert stack.controller.failures() == ["gateway"]


async def test_a_refused_seal_is_reported_and_not_dropped(stack: Any) -> None:
    stack.trajectory.errors = [Conflict("same trace as g-1", details={"field": "trace_digest"})]
    stack.add()
    await stack.start()
    await stack.ended()
    assert stack.controller.failures() == ["capture_incomplete"]
    assert "same trace" in stack.controller.completed[0].retry.evidence


async def test_the_tool_protocol_end_to_end(stack: Any, chat: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    stack.gateway.script = [(200, {}, chat(message, finish="tool_calls")), "All done."]
    stack.agent.run = lambda _: (agent_pb2.Exited(), b"a.txt\n", b"")
    stack.add(harness_config_json='{"protocol": "tools", "observation_chars": 100}')
    await stack.start()
    await stack.ended()
    assert stack.gateway.calls[0]["tools"][0]["function"]["name"] == "bash"
    answer = stack.gateway.calls[1]["messages"][-1]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "c1")
    assert json.loads(answer["content"]) == {"exit": 0, "stdout": "a.txt\n"}
    assert stack.gateway.calls[1]["messages"][-2]["tool_calls"] == [call]
    assert stack.trajectory.terminations() == ["agent_done"]


async def test_a_long_attempt_renews_its_sandbox(stack: Any) -> None:
    stack.gateway.script = ["sleep 1"]
    stack.agent.delay_s = 0.5
    stack.add()
    await stack.start(sandbox_ttl_s=0.3)
    await stack.ended()
    assert len(stack.scheduler.renewed) >= 3
