"""An engine host: one engine at a time, ordered over gRPC. vLLM is a fake program that waits, serves and dies alike."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from engine_host_harness import Host, kill_engine, running_host
from gateway_harness import SECRET
from grpc_health.v1 import health_pb2, health_pb2_grpc

from longshore.engine.v1 import engine_pb2 as pb
from longshore.engine.v1 import engine_pb2_grpc
from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec, PermissionDenied
from longshore_common.grpc_client import open_channel
from longshore_inference_gateway.clients.vllm import api_key_of
from longshore_inference_gateway.engine_host.settings import Settings


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with running_host(tmp_path / "host") as running:
        yield running


@pytest.fixture
def other_model(model_dir: Path, tmp_path: Path) -> Path:
    shutil.copytree(model_dir, tmp_path / "other")
    (tmp_path / "other" / "weights.bin").write_bytes(b"other")
    return tmp_path / "other"


@pytest.fixture
def failing_model(model_dir: Path, tmp_path: Path) -> Path:
    shutil.copytree(model_dir, tmp_path / "failing")
    (tmp_path / "failing" / "fail").touch()
    return tmp_path / "failing"


async def test_an_order_is_served_and_repeating_it_starts_nothing(host: Host, model_dir: Path) -> None:
    assert (await host.status()).state == pb.ENGINE_STATE_IDLE
    ordered = await host.serve(model_dir)
    assert ordered.state in (pb.ENGINE_STATE_VERIFYING, pb.ENGINE_STATE_STARTING)
    ready = await host.settled()
    assert (ready.state, ready.instance) == (pb.ENGINE_STATE_READY, ordered.instance)
    assert (ready.base_name, ready.uri, ready.context_length) == ("demo-v0", str(model_dir), 77)
    assert ready.http_port
    assert psutil.pid_exists(ready.pid)
    again = await host.serve(model_dir)
    assert (again.state, again.instance, again.pid) == (ready.state, ready.instance, ready.pid)
    assert host.started() == ["demo-v0"]


async def test_limits_and_the_kind_of_engine_are_told(tmp_path: Path, model_dir: Path) -> None:
    async with running_host(
        tmp_path / "host", engine_max_cpu_loras=3, engine_max_lora_rank=32, engine_max_num_seqs=5, engine_device="gpu"
    ) as host:
        answer = await host.stub.Status(pb.StatusRequest())
        assert answer.limits == pb.EngineLimits(max_adapters=3, max_lora_rank=32, max_num_seqs=5)
        assert not answer.status.base_apart
    async with running_host(tmp_path / "host2", engine_device="cpu") as host:
        assert (await host.status()).base_apart


async def test_another_base_replaces_the_first_on_the_same_port(host: Host, model_dir: Path, other_model: Path) -> None:
    await host.serve(model_dir)
    first = await host.settled()
    second_order = await host.serve(other_model, "other-v0")
    assert second_order.instance != first.instance
    second = await host.settled()
    assert (second.state, second.base_name, second.http_port) == (
        pb.ENGINE_STATE_READY,
        "other-v0",
        first.http_port,
    )
    assert not psutil.pid_exists(first.pid)
    assert host.started() == ["demo-v0", "other-v0"]


async def test_only_the_last_of_many_orders_is_served(host: Host, model_dir: Path, other_model: Path) -> None:
    for _ in range(3):
        await host.serve(model_dir)
        await host.serve(other_model, "other-v0")
    assert (await host.settled()).base_name == "other-v0"
    assert await _served(host) == "other-v0"


async def test_a_late_stop_of_the_old_base_or_instance_is_a_no_op(
    host: Host, model_dir: Path, other_model: Path
) -> None:
    await host.serve(model_dir)
    first = await host.settled()
    await host.serve(other_model, "other-v0")
    second = await host.settled()
    assert (await host.stop("demo-v0")).state == pb.ENGINE_STATE_READY
    assert (await host.stop("other-v0", first.instance)).state == pb.ENGINE_STATE_READY
    assert (await host.stop("other-v0", second.instance)).state == pb.ENGINE_STATE_IDLE
    assert not psutil.pid_exists(second.pid)


async def test_a_folder_that_the_volume_lacks_is_named(host: Host, tmp_path: Path) -> None:
    await host.serve(tmp_path / "absent", digest="sha256:0")
    failed = await host.settled()
    assert failed.failure.code == "invalid_spec"
    assert f"does not see {tmp_path / 'absent'}" in failed.failure.message
    assert "mount the same volume" in failed.failure.message
    assert host.started() == []


async def test_other_content_under_the_path_is_refused_also_after_it_was_right_once(
    host: Host, other_model: Path
) -> None:
    digest = tree_digest(other_model)
    await host.serve(other_model)
    assert (await host.settled()).state == pb.ENGINE_STATE_READY
    await host.stop()
    (other_model / "weights.bin").write_bytes(b"changed")
    await host.serve(other_model, digest=digest)
    failed = await host.settled()
    assert failed.failure.code == "invalid_spec"
    assert f"not {digest}" in failed.failure.message
    assert host.started() == ["demo-v0"]


async def test_an_engine_that_does_not_start_says_why_and_can_be_ordered_again(host: Host, failing_model: Path) -> None:
    await host.serve(failing_model)
    failed = await host.settled()
    assert failed.failure.code == "internal"
    assert "status 3" in failed.failure.message
    assert "KV cache does not fit" in failed.failure.message
    again = await host.serve(failing_model)
    assert again.instance != failed.instance
    await host.settled()
    assert len(host.started()) == 2


async def test_a_killed_engine_is_reported_with_its_status_and_last_lines(host: Host, model_dir: Path) -> None:
    await host.serve(model_dir)
    ready = await host.settled()
    kill_engine(ready.pid)
    failed = await host.until(pb.ENGINE_STATE_FAILED)
    assert "exit status -9" in failed.failure.message
    assert "imports done" in failed.failure.message
    assert (failed.pid, failed.http_port) == (0, 0)
    await host.serve(model_dir)
    assert (await host.settled()).state == pb.ENGINE_STATE_READY


async def test_a_start_that_takes_too_long_fails(tmp_path: Path, model_dir: Path) -> None:
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    async with running_host(tmp_path / "host", program=program, engine_start_timeout_s=0.3) as host:
        await host.serve(model_dir)
        assert "not ready after 0.3 s" in (await host.settled()).failure.message


async def test_the_wrong_secret_is_refused_and_health_is_open(host: Host, model_dir: Path) -> None:
    channel = open_channel(host.address, "wrong")
    stub = engine_pb2_grpc.EngineHostServiceStub(channel)
    with pytest.raises(PermissionDenied, match="LONGSHORE_SECRET"):
        await stub.Serve(pb.ServeRequest(base_name="demo-v0", uri=str(model_dir), digest="d"))
    health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    await channel.close()
    assert (await host.status()).state == pb.ENGINE_STATE_IDLE


async def test_an_order_without_a_digest_is_refused(host: Host) -> None:
    with pytest.raises(InvalidSpec, match="digest"):
        await host.stub.Serve(pb.ServeRequest(base_name="demo-v0", uri="/m"))


async def test_the_engine_itself_is_guarded_by_a_derived_key(host: Host, model_dir: Path) -> None:
    await host.serve(model_dir)
    ready = await host.settled()
    url = f"http://127.0.0.1:{ready.http_port}/v1/models"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 401
        async with session.get(url, headers={"authorization": f"Bearer {api_key_of(SECRET)}"}) as answer:
            assert answer.status == 200
    assert SECRET not in str(api_key_of(SECRET))


async def test_nothing_outlives_the_host(tmp_path: Path, model_dir: Path) -> None:
    async with running_host(tmp_path / "host") as host:
        await host.serve(model_dir)
        pid = (await host.settled()).pid
    assert not psutil.pid_exists(pid)
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert left == []


async def test_lines_of_the_engine_reach_the_log(
    host: Host, model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await host.serve(model_dir)
    await host.settled()
    captured = capfd.readouterr()
    assert "fake vLLM: imports done" in captured.out + captured.err


def test_settings_are_read_without_engine_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_ENGINE_HOST_MAX_NUM_SEQS", "9")
    monkeypatch.setenv("LONGSHORE_ENGINE_HOST_EXTRA_ARGUMENTS", '["--seed", "1"]')
    monkeypatch.setenv("LONGSHORE_ENGINE_HOST_GRPC_ADDRESS", "0.0.0.0:7410")
    monkeypatch.setenv("LONGSHORE_ENGINE_HOST_HTTP_ADDRESS", "0.0.0.0:8000")
    monkeypatch.setenv("LONGSHORE_ENGINE_HOST_LOG_JSON", "true")
    monkeypatch.setenv("LONGSHORE_SECRET", "s")
    settings = Settings()
    assert (settings.engine_max_num_seqs, settings.engine_extra_arguments) == (9, ("--seed", "1"))
    assert (settings.grpc_address, settings.http_address, settings.log_json) == ("0.0.0.0:7410", "0.0.0.0:8000", True)
    assert settings.secret.get_secret_value() == "s"


def test_a_bad_address_is_one_error_and_status_2(tmp_path: Path) -> None:
    env = {**os.environ, "LONGSHORE_ENGINE_HOST_HTTP_ADDRESS": "8000", "LONGSHORE_SECRET": "s"}
    argv = [sys.executable, "-m", "longshore_inference_gateway.engine_host"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: engine-host: http_address '8000' is not host:port")


async def test_the_port_of_an_engine_is_the_one_that_was_given(tmp_path: Path, model_dir: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with running_host(tmp_path / "host", http_address=f"0.0.0.0:{port}") as host:
        await host.serve(model_dir)
        assert (await host.settled()).http_port == port


async def _served(host: Host) -> str:
    status = await host.status()
    headers = {"authorization": f"Bearer {api_key_of(SECRET)}"}
    url = f"http://127.0.0.1:{status.http_port}/v1/models"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        return str((await answer.json())["data"][0]["id"])
