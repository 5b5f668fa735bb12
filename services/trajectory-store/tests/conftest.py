"""Stores on SQLite and on a throw-away Postgres."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore_common.clock import SystemClock
from longshore_common.database import Database, migrate, with_schema
from longshore_trajectory_store.bootstrap import open_database
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

PACKAGE = "longshore_trajectory_store.store"
TABLES = "runs, groups, attempts, turns, batches"


@pytest.fixture(scope="session")
def postgres_url(postgres_server: str) -> str:
    """A schema of this session's server, migrated."""
    url = with_schema(postgres_server, "trajectory")
    # A thread of its own: the fixture may be asked for while a test's loop runs.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(migrate, url, PACKAGE).result()
    return url


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
