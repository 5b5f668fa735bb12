"""Each service starts alone, as a process of its own, answers its health check, and stops on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.conftest import start, until

SERVICES = {
    "task-catalog": "CATALOG",
    "sandbox-scheduler": "SCHEDULER",
    "inference-gateway": "GATEWAY",
    "reward-verifier": "VERIFIER",
    "trajectory-store": "TRAJECTORY",
    "controller": "CONTROLLER",
    "rollout-worker": "ROLLOUT",
}
WITH_HTTP = ("inference-gateway", "controller")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(address: str) -> bool:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def settings_of(home: Path) -> dict[str, str]:
    """The environment of all services: one file of variables, as a cluster's ConfigMap would be."""
    grpc_ports = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
    values = {"LONGSHORE_SECRET": "e2e-secret"}
    for name in SERVICES:
        prefix = f"LONGSHORE_{name.replace('-', '_').upper()}_"
        values[f"{prefix}GRPC_ADDRESS"] = grpc_ports[name]
        values[f"{prefix}DATA_DIR"] = str(home / name)
        for other, key in SERVICES.items():
            values[f"{prefix}{key}_ADDRESS"] = grpc_ports[other]
        if name in WITH_HTTP:
            values[f"{prefix}HTTP_ADDRESS"] = f"127.0.0.1:{free_port()}"
    return values


def module(name: str) -> str:
    return f"longshore_{name.replace('-', '_')}"


@pytest.mark.slow
def test_seven_services_and_a_trainer_run_as_processes_of_their_own(tmp_path: Path):
    """Seven servers are healthy together; the eighth, the trainer, is a job: it checks a job file and ends."""
    values = settings_of(tmp_path)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in SERVICES:
            argv = (sys.executable, "-m", module(name))
            started[name] = start(*argv, log=tmp_path / f"{name}.log", **values)
        for name in SERVICES:
            address = values[f"LONGSHORE_{name.replace('-', '_').upper()}_GRPC_ADDRESS"]
            until(lambda address=address: healthy(address), 120, f"{name} healthy: {(tmp_path / f'{name}.log')}")
        assert all(process.poll() is None for process in started.values())
    finally:
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(60) for name, process in started.items()}
    assert codes == dict.fromkeys(SERVICES, 0), (tmp_path / "controller.log").read_text()

    job = tmp_path / "job.json"
    job.write_text(json.dumps({"kind": "rl", "presett": "grpo"}))
    done = subprocess.run(
        [sys.executable, "-m", "longshore_trainer", "--job", str(job)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 2, done.stderr
    assert "presett" in done.stderr


@pytest.mark.parametrize("name", ["task-catalog", "trajectory-store"])
def test_a_port_in_use_is_one_clear_error_and_exit_2(name: str, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        prefix = f"LONGSHORE_{name.replace('-', '_').upper()}_"
        env = {f"{prefix}GRPC_ADDRESS": address, f"{prefix}DATA_DIR": str(tmp_path), "LONGSHORE_SECRET": "x"}
        process = start(sys.executable, "-m", module(name), log=tmp_path / "log", **env)
        assert process.wait(60) == 2
    last = (tmp_path / "log").read_text().strip().splitlines()[-1]
    assert last.startswith(f"error: {name}")
    assert address in last
    assert "port is in use" in last


def test_a_wrong_setting_is_one_clear_error_and_exit_2(tmp_path: Path):
    process = start(
        sys.executable, "-m", module("sandbox-scheduler"), log=tmp_path / "log",
        LONGSHORE_SANDBOX_SCHEDULER_MAX_SANDBOXES="many",
    )  # fmt: skip
    assert process.wait(60) == 2
    assert "max_sandboxes" in (tmp_path / "log").read_text()
