"""The controller alone, as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, port: int, metrics: int) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "LONGSHORE_SECRET": "s",
        "LONGSHORE_CONTROLLER_HTTP_ADDRESS": f"127.0.0.1:{port}",
        "LONGSHORE_CONTROLLER_METRICS_ADDRESS": f"127.0.0.1:{metrics}",
        "LONGSHORE_CONTROLLER_DATA_DIR": str(folder / "controller"),
    }
    argv = [sys.executable, "-m", "longshore_controller"]
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_starts_alone_and_ends_on_sigterm(tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    process = start(tmp_path, port, metrics)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).json() == {"status": "ok"}
                break
            except httpx.TransportError:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/runs", headers={"authorization": "Bearer s"}, trust_env=False)
        assert answer.json() == {"runs": [], "next_page_token": ""}
        page = httpx.get(f"http://127.0.0.1:{metrics}/metrics", trust_env=False).text
        assert "longshore_controller_runs" in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, taken.getsockname()[1], free_port())
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "the port is in use" in errors.splitlines()[-1]
    assert "Traceback" not in errors
