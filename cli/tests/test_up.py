"""`longshore up` as a process: found by other commands, one per home, gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import Result

Cli = Callable[..., Result]
START_S = 90.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


METRICS_PORT = _free_port()


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """`longshore up` in the background."""
    command = [sys.executable, "-m", "longshore_cli", "up", "--home", str(home), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean)


def wait_up(process: subprocess.Popen[str], home: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (home / "endpoints.json").exists():
        assert process.poll() is None, f"up ended with {process.returncode}: {process.stderr and process.stderr.read()}"
        assert time.monotonic() < deadline, "up did not start"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def running_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    home = tmp_path_factory.mktemp("up") / "home"
    metrics = ("--metrics", f"127.0.0.1:{METRICS_PORT}")
    process = start(home, "--port-base", "0", "--log-level", "error", *metrics)
    try:
        wait_up(process, home)
        yield home, process
    finally:
        process.kill()
        process.wait()


def test_other_commands_find_it(cli: Cli, running_home: tuple[Path, subprocess.Popen[str]]) -> None:
    home, _ = running_home
    for noun in ("run", "task", "sandbox", "policy"):
        result = cli(noun, "list", "--home", str(home), "-o", "json")
        assert result.exit_code == 0, f"{noun} list: {result.output}"
        assert json.loads(result.stdout) == []


def test_a_second_one_on_the_home_names_the_first(cli: Cli, running_home: tuple[Path, subprocess.Popen[str]]) -> None:
    home, process = running_home
    result = cli("up", "--home", str(home), "--port-base", "0")
    assert result.exit_code == 2
    assert f"in use by process {process.pid}" in result.stderr
    assert (home / "endpoints.json").exists()


def test_without_the_secret_nobody_is_answered(
    cli: Cli, running_home: tuple[Path, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = running_home
    address = json.loads((home / "endpoints.json").read_text())["grpc"]["controller"]
    monkeypatch.setenv("LONGSHORE_SECRET", "guess")
    result = cli("run", "list", "--server", address)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_one_page_has_the_metrics_of_all_services(running_home: tuple[Path, subprocess.Popen[str]]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    for service in ("controller", "sandbox", "gateway", "trajectory", "rollout", "verifier"):
        assert f"\nlongshore_{service}_" in page


def test_a_signal_ends_it_and_leaves_nothing(running_home: tuple[Path, subprocess.Popen[str]]) -> None:
    """Last in this module: it ends the shared process."""
    home, process = running_home
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not (home / "endpoints.json").exists()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []
    assert process.stderr is not None
    assert process.stderr.read().endswith("stopped: nothing is left running\n")


def test_a_port_in_use_is_one_error_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = cli("up", "--home", "h", "--port-base", str(port))
    assert result.exit_code == 2
    assert result.stderr.count("error:") == 1
    assert f"port {port} on 127.0.0.1" in result.stderr
    assert not (tmp_path / "h").exists()


def test_a_metrics_port_in_use_is_one_error_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cli("up", "--home", "h", "--port-base", "0", "--metrics", address)
    assert result.exit_code == 2
    assert result.stderr.count("error:") == 1
    assert address in result.stderr
    assert not (tmp_path / "h").exists()


def test_an_unknown_log_level(cli: Cli, tmp_path: Path) -> None:
    result = cli("up", "--home", "h", "--port-base", "0", "--log-level", "loud")
    assert result.exit_code == 2
    assert not (tmp_path / "h").exists()
