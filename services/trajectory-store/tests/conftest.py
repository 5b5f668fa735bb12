"""Stores on SQLite and on a throw-away Postgres."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore_common.clock import SystemClock
from longshore_common.database import Database, migrate
from longshore_trajectory_store.bootstrap import open_database
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

PACKAGE = "longshore_trajectory_store.store"
TABLES = "runs, groups, attempts, turns, batches"


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
def postgres_url() -> Iterator[str]:
    """A server of this session, migrated; skipped when no server binaries are installed."""
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
        url = f"postgresql+asyncpg://longshore@127.0.0.1:{port}/postgres"
        # A thread of its own: the fixture may be asked for while a test's loop runs.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(migrate, url, PACKAGE).result()
        yield url
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


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file to copy."""
    path = tmp_path_factory.mktemp("template") / "store.sqlite"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(migrate, f"sqlite+aiosqlite:///{path}", PACKAGE).result()
        # The template is copied without its write-ahead log.
        pool.submit(asyncio.run, _checkpoint(path)).result()
    return path


async def _checkpoint(path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{path}")
    async with database.read() as connection:
        await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    await database.close()


async def empty(url: str) -> None:
    """Removes all rows of a Postgres test database."""
    database = Database(url)
    async with database.begin() as connection:
        await connection.execute(text(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE"))
        await connection.execute(text("UPDATE sequences SET value = 0"))
    await database.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path, sqlite_template: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "store.sqlite")
        return f"sqlite+aiosqlite:///{tmp_path}/store.sqlite"
    url: str = request.getfixturevalue("postgres_url")
    await empty(url)
    return url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlTrajectoryStore]:
    """A store on an empty database of either kind."""
    opened = SqlTrajectoryStore(open_database(database_url), SystemClock())
    yield opened
    await opened.close()
