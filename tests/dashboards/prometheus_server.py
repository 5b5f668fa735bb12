"""A real Prometheus for as long as a block runs, and the check of all expressions against it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/helm/longshore/alerts/longshore.yaml"
SCRAPE_S = 2
_START_S = 60


class NotRun(Exception):
    """What is needed is not there, or ended early."""


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tool(name: str) -> str:
    """Its path. Raises NotRun."""
    found = shutil.which(name)
    if found is None:
        raise NotRun(f"no {name} on PATH: run `make test-dashboards`, or tests/cluster/cluster prometheus and its env")
    return found


def base_configuration() -> dict[str, Any]:
    """Of Prometheus, without jobs."""
    return {"global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "10s"}, "rule_files": [str(RULES)]}


def check_rules() -> None:
    """Raises NotRun when promtool finds fault with the alert rules."""
    done = subprocess.run([tool("promtool"), "check", "rules", str(RULES)], check=False)
    if done.returncode:
        raise NotRun(f"{RULES} is not good; promtool says why above")


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Its URL, while it runs."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    argv = [
        tool("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            until(lambda: answers(f"http://{address}/-/ready"), process, folder / "prometheus.log")
            yield f"http://{address}"
        finally:
            process.terminate()


def until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when it is ready. Raises NotRun with the end of its log."""
    deadline = time.monotonic() + _START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotRun(f"{process.args!r} is not ready:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def check(url: str, lookback_s: float, *more: str) -> int:
    """Asks everything; the table goes to stdout. more: arguments of tools/check_dashboards.py."""
    argv = [sys.executable, str(ROOT / "tools/check_dashboards.py"), "--prometheus", url]
    return subprocess.run([*argv, "--lookback", f"{lookback_s:.0f}", "--window", "30s", *more], check=False).returncode
