"""An engine host as its own process with the real vLLM: order, restart of the gateway, kill -9, another base."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from engine_host_harness import kill_engine
from gateway_fakes import FakeTrajectory
from gateway_harness import SECRET, Gateway, running_gateway, settings
from gateway_tiny_model import make_adapter, make_model

from longshore.common.v1 import outcome_pb2
from longshore.engine.v1 import engine_pb2, engine_pb2_grpc
from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.child import Child, spawn
from longshore_common.grpc_client import open_channel, wait_ready
from longshore_inference_gateway.clients import vllm_options
from longshore_inference_gateway.clients.vllm import api_key_of
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_settings import Device, EngineSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = [{"role": "user", "content": "Count the lines of data.txt into answer.txt"}]


@contextlib.asynccontextmanager
async def _host(root: Path) -> AsyncIterator[tuple[str, Child]]:
    with socket.socket() as grpc_probe, socket.socket() as metrics_probe:
        grpc_probe.bind(("127.0.0.1", 0))
        metrics_probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{grpc_probe.getsockname()[1]}"
        metrics = f"127.0.0.1:{metrics_probe.getsockname()[1]}"
    prefix = "LONGSHORE_ENGINE_HOST_"
    env = {**os.environ, "LONGSHORE_SECRET": SECRET, f"{prefix}DATA_DIR": str(root / "engine")}
    env |= {f"{prefix}GRPC_ADDRESS": address, f"{prefix}METRICS_ADDRESS": metrics}
    argv = [sys.executable, "-m", "longshore_inference_gateway.engine_host"]
    child = await spawn("engine-host", argv, env=env, log_path=root / "engine-host.log")
    try:
        channel = open_channel(address)
        assert await wait_ready(channel, 30), child.log_tail()
        await channel.close()
        yield address, child
    finally:
        await child.stop(grace_s=20)


async def _status(address: str) -> engine_pb2.EngineStatus:
    channel = open_channel(address, SECRET)
    status = (await engine_pb2_grpc.EngineHostServiceStub(channel).Status(engine_pb2.StatusRequest())).status
    await channel.close()
    return status


async def _check_turn(gateway: Gateway, trajectory: FakeTrajectory, attempt: str, served: str) -> None:
    session = await gateway.open(attempt)
    status, answer = await gateway.chat(session.token, MESSAGES)
    assert status == 200, answer
    (turn,) = trajectory.of(attempt)
    assert (turn.served_name, turn.trainable) == (served, True), turn.untrainable_reason
    assert len(turn.completion_ids) == len(turn.logprobs) > 0


async def test_the_life_of_an_engine_host(tmp_path: Path, trajectory: FakeTrajectory, trajectory_address: str) -> None:
    model = await asyncio.to_thread(make_model, tmp_path / "model")
    other = await asyncio.to_thread(make_model, tmp_path / "other", seed=1)
    adapter = await asyncio.to_thread(make_adapter, model, tmp_path / "v1", seed=1)
    async with _host(tmp_path) as (address, child):
        config = settings(
            tmp_path / "gateway",
            trajectory_address,
            engine_mode="hosted",
            engine_addresses=(address,),
            engine_probe_s=0.5,
        )
        async with running_gateway(config) as gateway:
            await _timed("base served", gateway.publish(model, 0))
            await _check_turn(gateway, trajectory, "a-0", "demo-v0")
            await _timed("adapter served", gateway.publish(adapter, 1))
            await _check_turn(gateway, trajectory, "a-1", "demo-v1")
            first = await _status(address)
            assert first.base_apart
            await _check_doors(f"http://127.0.0.1:{first.http_port}")

        async with running_gateway(config) as gateway:
            await _timed("taken over", _until_ready(gateway))
            assert (await _status(address)).instance == first.instance
            await _check_turn(gateway, trajectory, "a-2", "demo-v1")

            kill_engine(first.pid)
            await _timed("back after kill -9", _until_replaced(gateway, address, first.instance))
            await _check_turn(gateway, trajectory, "a-3", "demo-v1")
            assert "exit status -9" in child.log_tail(2000)

            await gateway.stub.RetireAlias(pb.RetireAliasRequest(alias="demo"), timeout=60)
            published = await _timed("another base served", gateway.publish(other, 0, alias="next"))
            assert published.policy.served_name == "next-v0"
            assert (await _status(address)).base_name == "next-v0"
            await _check_drain(gateway, child)
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert left == []


async def _check_doors(url: str) -> None:
    """All routes that this vLLM has, asked without the key."""
    key = {"authorization": f"Bearer {api_key_of(SECRET)}"}
    async with aiohttp.ClientSession(url) as session:
        async with session.get("/openapi.json", headers=key) as answer:
            paths = (await answer.json())["paths"]
        assert {"/v1/load_lora_adapter", "/invocations", "/inference/v1/generate"} <= set(paths)
        assert not {"/pause", "/update_weights", "/collective_rpc", "/sleep"} & set(paths)
        unguarded = set()
        for path, method in [(path, method) for path, methods in paths.items() for method in methods]:
            async with session.request(method, path, json={}) as answer:
                if answer.status != 401:
                    unguarded.add((method, path))
        assert unguarded == {("get", "/health"), ("get", "/metrics")}
        async with session.get("/metrics") as answer:
            assert "vllm:num_requests_running" in await answer.text()


async def _check_drain(gateway: Gateway, child: Child) -> None:
    """A call in flight is answered though the pod is told to end."""
    sampling = outcome_pb2.Sampling(temperature=1.0, max_tokens=300)
    session = await gateway.open("a-4", alias="next", sampling=sampling)
    call = asyncio.create_task(gateway.chat(session.token, MESSAGES))
    await asyncio.sleep(0.2)
    assert not call.done()
    ending = asyncio.create_task(child.stop(grace_s=30))
    status, answer = await call
    assert status == 200, answer
    assert await ending == 0


async def _timed(what, awaitable):
    started = time.monotonic()
    result = await awaitable
    print(f"{what} after {time.monotonic() - started:.1f} s")
    return result


async def _until_ready(gateway: Gateway) -> None:
    while True:
        engines = (await gateway.stub.ListEngines(pb.ListEnginesRequest())).engines
        if [engine.state for engine in engines] == ["ready"]:
            return
        await asyncio.sleep(0.1)


async def _until_replaced(gateway: Gateway, address: str, instance: str) -> None:
    while (await _status(address)).instance in ("", instance):
        await asyncio.sleep(0.1)
    await _until_ready(gateway)


@pytest.mark.parametrize("device", list(Device))
def test_vllm_knows_every_argument(tmp_path: Path, device: Device) -> None:
    """Its own parser, in a process of its own; on GPUs nothing more can be tried here."""
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16", "max_position_embeddings": 4096}')
    options = EngineSettings(
        engine_device=device,
        engine_tensor_parallel_size=4,
        engine_max_model_len=2048,
        engine_enforce_eager=True,
        engine_drain_s=20,
        engine_extra_arguments=("--seed", "1"),
    )
    order = vllm_options.arguments(options, ServedBase("demo-v0", str(tmp_path), "d"), "0.0.0.0", 8000)
    script = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
found = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
names = ("tensor_parallel_size", "max_model_len", "shutdown_timeout", "middleware", "seed")
print(json.dumps([getattr(found, name) for name in names]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(order)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parallel = 4 if device is Device.GPU else 1
    door = "longshore_inference_gateway.engine_door.Door"
    assert json.loads(done.stdout.splitlines()[-1]) == [parallel, 2048, 20, [door], 1]
