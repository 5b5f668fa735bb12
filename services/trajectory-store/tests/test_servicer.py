"""The gRPC face: mapping, long polls, live streams, export, settings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from longshore.common.v1 import outcome_pb2 as common
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as pb_grpc
from longshore_common.app import running
from longshore_common.errors import InvalidSpec, NotFound, PermissionDenied
from longshore_common.grpc_client import mapped_stream, open_channel
from longshore_common.tensors import unpack_f32, unpack_i32, unpack_u8
from longshore_trajectory_store.api import mapping
from longshore_trajectory_store.bootstrap import build
from longshore_trajectory_store.settings import Settings

from .builders import a_turn

SECRET = "the-secret"


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[pb_grpc.TrajectoryServiceAsyncStub]:
    app = await build(Settings(data_dir=tmp_path, secret=SECRET))
    async with running(app) as handle:
        channel = open_channel(handle.grpc_addresses[0], SECRET)
        yield pb_grpc.TrajectoryServiceStub(channel)
        await channel.close()


def group_request(group_id: str = "g1", size: int = 2, purpose: int = pb.PURPOSE_TRAIN) -> pb.CreateGroupRequest:
    group = pb.Group(
        group_id=group_id, run_id="run", purpose=purpose, task_digest="sha256:t", step=1, size=size, min_scored=1
    )
    return pb.CreateGroupRequest(group=group, seeds=range(size))


def turn_request(attempt_id: str, **values) -> pb.AppendTurnRequest:
    return pb.AppendTurnRequest(turn=mapping.turn_to_proto(a_turn(attempt_id, tokenizer_digest="", **values)))


def seal_request(attempt_id: str, reward: float = 1.0) -> pb.SealRequest:
    names = [field.name for field in pb.AttemptIdentity.DESCRIPTOR.fields if field.name != "sampling"]
    identity = pb.AttemptIdentity(**dict.fromkeys(names, "sha256:t"), sampling=common.Sampling(temperature=1, seed=3))
    return pb.SealRequest(
        attempt_id=attempt_id,
        lease_epoch=1,
        outcome=common.Outcome(scored=common.Scored(reward=reward, termination=common.TERMINATION_TURN_LIMIT)),
        reward=common.Reward(
            reward=reward, keys={"reward": reward}, tamper_resistance=common.TAMPER_RESISTANCE_STRONG, regraded=True
        ),
        identity=identity,
        sandbox_id=f"sandbox-{attempt_id}",
        agent_s=2.5,
    )


async def finish(stub, group_id: str, size: int = 2) -> None:
    for index in range(size):
        await stub.AppendTurn(turn_request(f"{group_id}-{index}"))
        await stub.Seal(seal_request(f"{group_id}-{index}"))


def take_request(step: int = 1, groups: int = 1, wait_s: float = 0.0) -> pb.TakeBatchRequest:
    return pb.TakeBatchRequest(run_id="run", incarnation=1, step=step, groups=groups, wait_s=wait_s)


async def test_an_attempt_from_group_to_batch(stub) -> None:
    created = await stub.CreateGroup(group_request())
    assert created.created
    assert list(created.group.attempt_ids) == ["g1-0", "g1-1"]
    await stub.Fence(pb.FenceRequest(attempt_id="g1-0", epoch=1))
    await finish(stub, "g1")
    response = await stub.TakeBatch(take_request())
    (group,) = response.batch.groups
    attempt = group.attempts[0]
    assert (attempt.attempt_id, attempt.reward, attempt.staleness) == ("g1-0", 1.0, 0)
    assert attempt.termination == common.TERMINATION_TURN_LIMIT
    (segment,) = attempt.segments
    assert segment.length == 6
    assert unpack_i32(segment.token_ids).tolist() == [1, 2, 3, 11, 12, 13]
    assert unpack_u8(segment.loss_mask).tolist() == [0, 0, 0, 1, 1, 1]
    assert unpack_f32(segment.logprobs).tolist() == [0, 0, 0, -0.5, -1.5, -2.5]
    assert unpack_i32(segment.versions).tolist() == [-1, -1, -1, 0, 0, 0]
    await stub.CommitBatch(pb.CommitBatchRequest(run_id="run", incarnation=1, step=1, batch_id=response.batch.batch_id))
    group_now = (await stub.GetGroup(pb.GetGroupRequest(group_id="g1"))).group
    assert (group_now.state, group_now.consumed_step) == (pb.GROUP_STATE_CONSUMED, 1)


async def test_attempt_and_turns_round_trip(stub) -> None:
    await stub.CreateGroup(group_request())
    sent = turn_request("g1-0", response_zst=b"r", served_name="demo-v0")
    await stub.AppendTurn(sent)
    sealed = (await stub.Seal(seal_request("g1-0", reward=0.5))).attempt
    got = await stub.GetAttempt(pb.GetAttemptRequest(attempt_id="g1-0", with_turns=True))
    assert got.attempt == sealed
    assert list(got.turns) == [sent.turn]
    assert sealed.state == pb.ATTEMPT_STATE_SEALED
    assert sealed.outcome.scored.reward == 0.5
    assert sealed.reward == seal_request("g1-0", reward=0.5).reward
    assert sealed.identity.sampling.seed == 3
    assert sealed.trainable


async def test_a_failed_attempt_tolerates_an_empty_reward_message(stub) -> None:
    """SealRequest(reward=answer.reward) sets an empty message when the verifier gave none."""
    await stub.CreateGroup(group_request())
    failed = common.Failed(failure=common.FAILURE_REWARD_MISSING, evidence="no file")
    request = pb.SealRequest(
        attempt_id="g1-0", lease_epoch=1, outcome=common.Outcome(failed=failed), reward=common.Reward()
    )
    attempt = (await stub.Seal(request)).attempt
    assert attempt.outcome.failed == failed
    assert not attempt.HasField("reward")


async def test_unspecified_values_are_refused_with_their_field(stub) -> None:
    with pytest.raises(InvalidSpec) as caught:
        await stub.CreateGroup(group_request(purpose=pb.PURPOSE_UNSPECIFIED))
    assert caught.value.field == "purpose"
    await stub.CreateGroup(group_request())
    request = seal_request("g1-0")
    request.outcome.scored.termination = common.TERMINATION_UNSPECIFIED
    with pytest.raises(InvalidSpec, match="agent_done, agent_timeout"):
        await stub.Seal(request)
    request.outcome.scored.termination = common.TERMINATION_AGENT_DONE
    request.outcome.scored.reward = float("nan")
    with pytest.raises(InvalidSpec, match="not finite"):
        await stub.Seal(request)
    with pytest.raises(NotFound, match="nobody"):
        await stub.GetAttempt(pb.GetAttemptRequest(attempt_id="nobody"))
    with pytest.raises(InvalidSpec, match="page_token"):
        await stub.ListAttempts(pb.ListAttemptsRequest(page_token="x"))


async def test_callers_without_the_secret_are_refused(tmp_path: Path) -> None:
    app = await build(Settings(data_dir=tmp_path, secret=SECRET))
    async with running(app) as handle:
        channel = open_channel(handle.grpc_addresses[0], "wrong")
        with pytest.raises(PermissionDenied):
            await pb_grpc.TrajectoryServiceStub(channel).GetGroup(pb.GetGroupRequest(group_id="g1"))
        await channel.close()


async def test_take_waits_for_the_last_seal_and_no_longer(stub) -> None:
    await stub.CreateGroup(group_request())
    waiting = asyncio.ensure_future(stub.TakeBatch(take_request(wait_s=20)))
    await finish(stub, "g1")
    started = time.monotonic()
    assert (await waiting).batch.batch_id
    assert time.monotonic() - started < 2


async def test_take_answers_pending_after_its_wait(stub) -> None:
    await stub.CreateGroup(group_request())
    await finish(stub, "g1")
    started = time.monotonic()
    response = await stub.TakeBatch(take_request(groups=2, wait_s=0.3))
    assert (response.HasField("batch"), response.groups_available, response.closed) == (False, 1, False)
    assert time.monotonic() - started >= 0.3


async def test_closing_wakes_a_waiting_trainer(stub) -> None:
    await stub.CreateGroup(group_request())
    waiting = asyncio.ensure_future(stub.TakeBatch(take_request(wait_s=20)))
    await asyncio.sleep(0.05)
    assert (await stub.CloseRun(pb.CloseRunRequest(run_id="run", discard_open=True))).attempts_discarded == 2
    assert (await waiting).closed


async def test_watch_catches_up_then_follows_live(stub) -> None:
    await stub.CreateGroup(group_request("g1"))
    await stub.CreateGroup(group_request("g2"))
    await finish(stub, "g1")
    seen: list[tuple[int, str, int]] = []
    enough = asyncio.Event()

    async def watch() -> None:
        async for message in mapped_stream(stub.WatchSealed(pb.WatchSealedRequest(run_id="run", after=1))):
            seen.append((message.attempt.sequence, message.attempt.attempt_id, message.group.state))
            if len(seen) == 3:
                enough.set()

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    await finish(stub, "g2", size=1)
    await stub.Discard(pb.DiscardRequest(attempt_ids=["g2-1"], reason=common.DISCARD_REASON_SURPLUS))
    await asyncio.wait_for(enough.wait(), 10)
    task.cancel()
    assert [(sequence, name) for sequence, name, _ in seen] == [(2, "g1-1"), (3, "g2-0"), (4, "g2-1")]
    assert seen[0][2] == seen[2][2] == pb.GROUP_STATE_AVAILABLE


async def test_counts_by_the_contracts_names(stub) -> None:
    await stub.CreateGroup(group_request())
    await stub.AppendTurn(turn_request("g1-0"))
    await stub.Seal(seal_request("g1-0"))
    counts = (await stub.GetCounts(pb.GetCountsRequest(run_id="run", purpose=pb.PURPOSE_TRAIN))).counts
    assert (counts.planned, counts.scored, counts.open) == (2, 1, 1)
    assert dict(counts.by_termination) == {"turn_limit": 1}


async def test_export_is_json_lines_with_bodies(stub) -> None:
    await stub.CreateGroup(group_request())
    body = zstandard.compress(json.dumps({"messages": [{"role": "user", "content": "grüße"}]}).encode())
    await stub.AppendTurn(turn_request("g1-0", request_zst=body, response_zst=b"not zstd"))
    await stub.Seal(seal_request("g1-0"))
    failed = common.Outcome(failed=common.Failed(failure=common.FAILURE_ENGINE))
    await stub.Seal(pb.SealRequest(attempt_id="g1-1", lease_epoch=1, outcome=failed))
    call = stub.Export(pb.ExportRequest(run_id="run"))
    lines = [json.loads(message.json_line) async for message in mapped_stream(call)]
    assert [line["attempt"]["attempt_id"] for line in lines] == ["g1-0", "g1-1"]
    turn = lines[0]["turns"][0]
    assert (turn["prompt_ids"], turn["completion_ids"], turn["status"]) == ([1, 2, 3], [11, 12, 13], "ok")
    assert turn["request"]["messages"][0]["content"] == "grüße"
    assert set(turn["response"]) == {"base64"}
    assert lines[0]["attempt"]["outcome"] == {"scored": {"reward": 1.0, "termination": "turn_limit"}}
    assert lines[1]["attempt"]["outcome"]["failed"]["failure"] == "engine"
    assert "reward" not in lines[1]["attempt"]


async def test_pages_over_the_wire(stub) -> None:
    for name in ("a", "b", "c"):
        await stub.CreateGroup(group_request(name))
    seen: list[str] = []
    token = ""
    while True:
        page = await stub.ListAttempts(pb.ListAttemptsRequest(run_id="run", page_size=4, page_token=token))
        seen += [attempt.attempt_id for attempt in page.attempts]
        token = page.next_page_token
        if not token:
            break
    assert len(seen) == len(set(seen)) == 6
    assert len((await stub.ListGroups(pb.ListGroupsRequest(run_id="run"))).groups) == 3
    paged = await stub.ListGroups(pb.ListGroupsRequest(run_id="run", page_size=2))
    assert (len(paged.groups), bool(paged.next_page_token)) == (2, True)
