"""The gateway between the real vLLM and the real trajectory store: what is stored is what HF computes afresh."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gateway_harness import SECRET, Gateway, running_gateway, settings
from gateway_tiny_model import make_adapter, make_model

from longshore.common.v1 import outcome_pb2
from longshore.gateway.v1 import gateway_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore_common.child import spawn
from longshore_common.errors import Conflict
from longshore_common.grpc_client import open_channel, wait_ready

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SYSTEM = {"role": "system", "content": "Use the shell."}
TASK = {"role": "user", "content": "Count the lines of data.txt into answer.txt"}
OBSERVATION = {"role": "user", "content": "exit 1 wc: data.txt: No such file"}


class Reference:
    """HF forward passes of the base and of adapters."""

    def __init__(self, model_dir: Path, adapters: dict[int, Path]) -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        load = AutoModelForCausalLM.from_pretrained
        self._models: dict[int, Any] = {0: load(model_dir, dtype=torch.float32).eval()}
        for version, folder in adapters.items():
            base = load(model_dir, dtype=torch.float32)
            self._models[version] = PeftModel.from_pretrained(base, str(folder)).eval()

    def worst(self, turn: trajectory_pb2.Turn, version: int) -> float:
        """Largest difference between captured logprobs and those of a version."""
        prompt, sampled = list(turn.prompt_ids), list(turn.completion_ids)
        with self._torch.no_grad():
            logits = self._models[version](self._torch.tensor([prompt + sampled])).logits[0].float()
        expected = self._torch.log_softmax(logits / turn.sampling.temperature, -1)
        rows = expected[len(prompt) - 1 : -1].gather(-1, self._torch.tensor(sampled).unsqueeze(-1)).squeeze(-1)
        return float((rows - self._torch.tensor(list(turn.logprobs))).abs().max())


class World:
    """What the tests of this module share: one engine start."""

    def __init__(
        self,
        gateway: Gateway,
        store: trajectory_pb2_grpc.TrajectoryServiceStub,
        reference: Reference,
        adapters: dict[int, Path],
    ) -> None:
        self.gateway, self.store, self.reference, self.adapters = gateway, store, reference, adapters

    async def turns(self, attempt: str) -> list[trajectory_pb2.Turn]:
        request = trajectory_pb2.GetAttemptRequest(attempt_id=attempt, with_turns=True)
        return list((await self.store.GetAttempt(request)).turns)

    async def open(self, group: str, size: int = 1, **fields: Any) -> list[pb.OpenSessionResponse]:
        """Creates a group of attempts, as the controller does, and a session for each."""
        ids = [f"{group}-{index}" for index in range(size)]
        await self.store.CreateGroup(
            trajectory_pb2.CreateGroupRequest(
                group=trajectory_pb2.Group(
                    group_id=group,
                    run_id="run-1",
                    purpose=trajectory_pb2.PURPOSE_TRAIN,
                    task_digest="sha256:" + "0" * 64,
                    size=size,
                    min_scored=1,
                    attempt_ids=ids,
                ),
                seeds=range(size),
            )
        )
        for attempt in ids:
            await self.store.Fence(trajectory_pb2.FenceRequest(attempt_id=attempt, epoch=1))
        return [await self.gateway.open(attempt, **fields) for attempt in ids]

    async def check(self, attempt: str, versions: set[int]) -> list[trajectory_pb2.Turn]:
        turns = await self.turns(attempt)
        assert turns
        for turn in turns:
            assert turn.status == trajectory_pb2.TURN_STATUS_OK
            assert turn.trainable, turn.untrainable_reason
            (span,) = turn.versions
            assert (span.first_token, turn.served_name) == (0, f"demo-v{span.version}")
            assert span.version in versions
            assert len(turn.completion_ids) == len(turn.logprobs) > 0
            assert self.reference.worst(turn, span.version) < 1e-4
        return turns


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp("gateway")
    model = await asyncio.to_thread(make_model, root / "model")
    adapters = {n: await asyncio.to_thread(make_adapter, model, root / f"v{n}", seed=n) for n in (1, 2)}
    async with _trajectory_store(root) as address:
        channel = open_channel(address, SECRET)
        config = settings(root / "data", address, engine_prestart=True)
        async with running_gateway(config) as gateway:
            started = time.monotonic()
            answer = await gateway.publish(model, 0)
            print(f"version 0 served after {time.monotonic() - started:.1f} s")
            assert answer.policy.served_name == "demo-v0"
            assert answer.engines_confirmed == 1
            store = trajectory_pb2_grpc.TrajectoryServiceStub(channel)
            yield World(gateway, store, Reference(model, adapters), adapters)
        await channel.close()
    await _assert_no_engine_left(root)


@contextlib.asynccontextmanager
async def _trajectory_store(root: Path) -> AsyncIterator[str]:
    """The real store as a process of its own: services do not import each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    prefix = "LONGSHORE_TRAJECTORY_STORE_"
    env = {**os.environ, "LONGSHORE_SECRET": SECRET, f"{prefix}DATA_DIR": str(root / "trajectory")}
    env[f"{prefix}GRPC_ADDRESS"] = address
    argv = [sys.executable, "-m", "longshore_trajectory_store"]
    child = await spawn("trajectory-store", argv, env=env, log_path=root / "trajectory.log")
    try:
        channel = open_channel(address)
        assert await wait_ready(channel, 30), child.log_tail()
        await channel.close()
        yield address
    finally:
        await child.stop()


async def _assert_no_engine_left(root: Path) -> None:
    for _ in range(50):
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(root) in _command(pid)]
        if not left:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"processes left: {left}")


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


async def _two_turns(gateway: Gateway, token: str, **body: Any) -> None:
    messages = [SYSTEM, TASK]
    for _ in range(2):
        status, answer = await gateway.chat(token, messages, **body)
        assert status == 200, answer
        messages = [*messages, answer["choices"][0]["message"], OBSERVATION]


async def test_base_turns_equal_a_fresh_forward_pass_and_splice(world: World) -> None:
    (session,) = await world.open("base")
    await _two_turns(world.gateway, session.token)
    first, second = await world.check("base-0", {0})
    joined = [*first.prompt_ids, *first.completion_ids]
    assert (first.parent_turn, second.parent_turn) == (-1, 0)
    assert list(second.prompt_ids[: len(joined)]) == joined
    totals = await world.gateway.close(session.session_id)
    assert (totals.turns, totals.capture_complete) == (2, True)
    assert totals.completion_tokens == len(first.completion_ids) + len(second.completion_ids)


async def test_versions_load_hot_and_a_session_keeps_its_own(world: World) -> None:
    (old,) = await world.open("old")
    await world.gateway.chat(old.token, [SYSTEM, TASK])
    for version in (1, 2):
        published = await world.gateway.publish(world.adapters[version], version)
        print(f"version {version} published in {published.seconds * 1000:.0f} ms")
        (session,) = await world.open(f"new{version}")
        assert session.start_version == version
        await _two_turns(world.gateway, session.token)
        turns = await world.check(f"new{version}-0", {version})
        assert world.reference.worst(turns[0], 0) > 1e-2
        if version == 1:
            (pinned,) = await world.open("pinned")
    await _two_turns(world.gateway, old.token)
    assert len(await world.check("old-0", {0})) == 3
    assert pinned.start_version == 1
    await _two_turns(world.gateway, pinned.token)
    await world.check("pinned-0", {1})
    with pytest.raises(Conflict, match="never changes"):
        await world.gateway.publish(world.adapters[2], 1)


async def test_streaming_captures_the_same_way(world: World) -> None:
    sampling = outcome_pb2.Sampling(temperature=0.7, max_tokens=24, seed=5)
    streamed, whole = await world.open("stream", 2, sampling=sampling)
    status, raw = await world.gateway.chat_raw(
        streamed.token, [SYSTEM, TASK], stream=True, stream_options={"include_usage": True}
    )
    assert status == 200
    events = [line[6:] for line in raw.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    (turn,) = await world.check("stream-0", {2})
    assert chunks[-1]["usage"]["completion_tokens"] == len(turn.completion_ids)
    _, answer = await world.gateway.chat(whole.token, [SYSTEM, TASK])
    assert answer["choices"][0]["message"]["content"] == text, "the same seed draws the same tokens"


@pytest.mark.parametrize("seeded", [False, True])
async def test_many_sessions_at_once_are_not_bound_by_the_gateway(world: World, seeded: bool) -> None:
    count = 96
    group = f"many{int(seeded)}"
    sampling = outcome_pb2.Sampling(temperature=1.0, max_tokens=24, seed=7 if seeded else None)
    sessions = await world.open(group, count, sampling=sampling)
    wall, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(_two_turns(world.gateway, session.token) for session in sessions))
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(
        f"{count} x 2 turns, seeded {seeded}: {wall:.2f} s; CPU of gateway and client {500 * cpu / count:.2f} ms each"
    )
    for n in range(0, count, 8):
        await world.check(f"{group}-{n}", {2})
    totals = [await world.gateway.close(session.session_id) for session in sessions]
    assert all(total.turns == 2 and total.capture_complete for total in totals)
    assert cpu < 0.6 * wall, "the gateway and its client must leave most of the time to the engine"


async def test_an_engine_that_dies_is_restarted_with_its_adapters(world: World) -> None:
    (engine,) = (await world.gateway.stub.ListEngines(pb.ListEnginesRequest())).engines
    assert engine.state == "ready"
    assert "demo-v2" in engine.served_names
    _kill_children(engine.pid)
    (session,) = await world.open("killed")
    statuses = set()
    for _ in range(600):
        status, _ = await world.gateway.chat(session.token, [SYSTEM, TASK])
        statuses.add(status)
        if status == 200 and 503 in statuses:
            break
        await asyncio.sleep(0.3)
    assert statuses == {200, 503}
    turns = await world.turns("killed-0")
    assert world.reference.worst(turns[-1], 2) < 1e-4
    assert {turn.status for turn in turns[:-1]} == {trajectory_pb2.TURN_STATUS_ERROR}


def _kill_children(pid: int) -> None:
    import psutil

    for child in psutil.Process(pid).children():
        child.kill()
