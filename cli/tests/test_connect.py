"""`longshore connect` with a stand-in for kubectl that forwards to real ports."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from longshore_cli.connect import Target, agents_address
from longshore_cli.local.home import Endpoints, Home

from .conftest import FakeController, serve_in_thread

Cli = Callable[..., Result]
FAKE = Path(__file__).with_name("fake_kubectl.py")


def service(name: str, component: str, ports: dict[str, int], release: str = "rel", namespace: str = "ns") -> Any:
    labels = {"app.kubernetes.io/instance": release, "app.kubernetes.io/component": component}
    declared = [{"name": port, "port": number} for port, number in ports.items()]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"clusterIP": "10.0.0.1", "ports": declared},
    }


class Cluster:
    """What the stand-in answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services = [
            service("rel-longshore-controller", "controller", {"grpc": 7408, "rest": 7400}),
            service("rel-longshore-sandbox-scheduler", "sandbox-scheduler", {"grpc": 7402}),
        ]
        reference = {"name": "LONGSHORE_SECRET", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k"}}}
        containers = [{"env": [{"name": "OTHER"}, reference]}]
        self.put("deployment", {"spec": {"template": {"spec": {"containers": containers}}}})
        self.put("secret", {"data": {"k": base64.b64encode(b"shared\n").decode()}})
        self.show()

    def put(self, kind: str, value: Any) -> None:
        (self.folder / f"{kind}.json").write_text(json.dumps(value))

    def show(self) -> None:
        self.put("services", {"items": self.services})

    def upstream(self, address: str, *ports: int) -> None:
        self.put("upstream", {str(port): address for port in ports})

    def forwards(self) -> list[tuple[int, str]]:
        """(pid, target) of all forwards that ever were."""
        file = self.folder / "pids"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    folder, binaries = tmp_path / "cluster", tmp_path / "bin"
    folder.mkdir()
    binaries.mkdir()
    program = binaries / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_KUBECTL", str(folder))
    for name in ("LONGSHORE_HOME", "LONGSHORE_SERVER", "LONGSHORE_SECRET"):
        monkeypatch.delenv(name, raising=False)
    return Cluster(folder)


@pytest.fixture
def there(cluster: Cluster) -> Iterator[FakeController]:
    """A controller of that release."""
    fake = FakeController()
    with serve_in_thread(fake, "shared") as address:
        cluster.upstream(address, 7408, 7400, 7402, 7410)
        yield fake


def longshore(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "longshore_cli", *arguments]


def connecting(home: Path, *more: str) -> list[str]:
    return longshore("connect", "-n", "ns", "--release", "rel", "--home", str(home), *more)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.05)
    return found


def test_a_command_runs_with_the_release_as_its_home_and_nothing_stays(
    there: FakeController, cluster: Cluster, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        connecting(home, "--", *longshore("run", "list", "-o", "json")), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [run["run_id"] for run in json.loads(done.stdout)] == ["run-1"]
    # The relay is no port of the Service here, so it is the Deployment's.
    assert sorted(target for _, target in cluster.forwards()) == [
        "deployment/rel-longshore-sandbox-scheduler",
        "service/rel-longshore-controller",
        "service/rel-longshore-sandbox-scheduler",
    ]
    assert not any(alive(pid) for pid, _ in cluster.forwards())
    assert not (home / "secret").exists()
    assert not (home / "endpoints.json").exists()


def test_the_exit_code_is_the_commands_own(there: FakeController, tmp_path: Path) -> None:
    for script, code in (("exit 7", 7), ("kill -9 $$", 137), ('test "$LONGSHORE_HOME" = ' + str(tmp_path / "h"), 0)):
        done = subprocess.run(connecting(tmp_path / "h", "--", "sh", "-c", script), capture_output=True, timeout=60)
        assert done.returncode == code, done.stderr
    missing = subprocess.run(connecting(tmp_path / "h", "--", "no-such-program"), capture_output=True, timeout=60)
    assert (missing.returncode, b"cannot run no-such-program" in missing.stderr) == (2, True)


def test_it_holds_until_a_signal_and_a_dead_forward_comes_back_on_the_same_port(
    there: FakeController, cluster: Cluster, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    process = subprocess.Popen(connecting(home.path), stderr=subprocess.PIPE, text=True)
    try:
        endpoints = until(home.endpoints, "endpoints")
        assert endpoints.agents
        assert (home.path / "secret").read_text() == "shared\n"
        assert (home.path / "secret").stat().st_mode & 0o777 == 0o600
        (pid,) = [pid for pid, target in cluster.forwards() if target == "service/rel-longshore-controller"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(cluster.forwards()) == 4, "a second forward")
        listed = longshore("run", "list", "-o", "json", "--home", str(home.path))
        done = until(
            lambda: (one := subprocess.run(listed, capture_output=True, text=True, timeout=60)).returncode == 0 and one,
            "an answer",
        )
        assert json.loads(done.stdout)[0]["run_id"] == "run-1"
        assert home.endpoints() == endpoints
    finally:
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0, said
    assert f"connected to rel in ns: use --home {home.path}" in said
    assert "service/rel-longshore-controller: the forward ended" in said
    assert home.endpoints() is None
    assert not any(alive(pid) for pid, _ in cluster.forwards())


def test_agents_are_reached_where_the_home_says_and_elsewhere_where_the_scheduler_says(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with home.locked(), home.announced(Endpoints(1, {}, {}, "127.0.0.1:5")):
        assert agents_address(Target(home.path, None)) == "127.0.0.1:5"
        assert agents_address(Target(home.path, "elsewhere:7402")) == ""
    assert agents_address(Target(home.path, None)) == ""


def test_no_such_release_names_those_there_are(cli: Cli, cluster: Cluster) -> None:
    cluster.put("services", {"items": []})
    cluster.put("all", {"items": [service("x-controller", "controller", {"grpc": 7408}, "prod", "ml")]})
    result = cli("connect", "-n", "ns", "--release", "rel")
    assert result.exit_code == 2
    assert result.stderr == "error: no Longshore release 'rel' in namespace ns: there is prod in ml\n"
    (cluster.folder / "refused").write_text("all")
    assert "none is visible" in cli("connect", "-n", "ns", "--release", "rel").stderr


def test_a_secret_that_may_not_be_read(cli: Cli, cluster: Cluster) -> None:
    (cluster.folder / "refused").write_text("secret")
    result = cli("connect", "-n", "ns", "--release", "rel")
    assert (result.exit_code, "ask for `get` on secrets" in result.stderr) == (2, True), result.stderr
    (cluster.folder / "refused").unlink()
    cluster.put("secret", {"data": {}})
    assert "Secret own in ns has no readable key k" in cli("connect", "-n", "ns", "--release", "rel").stderr


def test_a_release_that_is_not_up_says_what_kubectl_says(cli: Cli, cluster: Cluster) -> None:
    cluster.upstream("127.0.0.1:1")
    result = cli("connect", "-n", "ns", "--release", "rel", "--timeout", "1")
    assert result.exit_code == 2
    assert "cannot be reached (3 of 3 cannot): error: unable to forward port" in result.stderr, result.stderr
    assert not Path("runs/cluster/secret").exists()


def test_a_service_without_its_port_is_of_another_version(cli: Cli, cluster: Cluster) -> None:
    cluster.services[0]["spec"]["ports"] = [{"name": "web", "port": 80}]
    cluster.show()
    result = cli("connect", "-n", "ns", "--release", "rel")
    assert "has no port grpc (7408), it has web 80" in result.stderr


def test_no_kubectl_and_a_home_of_local_services(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = cli("connect")
    assert (result.exit_code, "kubectl is not on the PATH" in result.stderr) == (2, True)
    (tmp_path / "h/controller").mkdir(parents=True)
    assert "holds local services' data" in cli("connect", "--home", "h").stderr
