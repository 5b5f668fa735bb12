"""What tests of several packages need."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _as_user(home: Path) -> list[str]:
    """Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("nobody")
    os.chown(home, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a real Postgres of this session, empty at first; skipped when no server binaries are installed."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no Postgres server binaries under /usr/lib/postgresql/*/bin")
    home = Path(subprocess.check_output(["mktemp", "-d", "/tmp/longshore-pg-XXXXXX"], text=True).strip())
    user = _as_user(home)
    port = _free_port()
    initdb = [str(binaries / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "longshore", "-N"]
    subprocess.run([*user, *initdb], check=True, capture_output=True, cwd="/")
    options = ["-p", str(port), "-k", str(home), "-h", "127.0.0.1", "-F", "-c", "max_connections=60"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*user, str(binaries / "postgres"), "-D", str(home / "data"), *options], stdout=log, stderr=log, cwd="/"
        )
    try:
        _wait_until_ready(binaries, home, port, server)
        yield f"postgresql+asyncpg://longshore@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(3)  # SIGQUIT: immediate shutdown
        server.wait(timeout=20)
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_ready(binaries: Path, home: Path, port: int, server: subprocess.Popen[bytes]) -> None:
    check = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
    for _ in range(200):
        if subprocess.run(check, check=False).returncode == 0:
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"Postgres did not start: {(home / 'log').read_text()}")
