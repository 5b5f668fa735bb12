"""Objects and databases: whole or not at all; a full disk is one clear error and passes when there is room."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore_common.database import Database
from longshore_common.errors import NotFound, QuotaExceeded
from longshore_common.objects import ObjectStore


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder]).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_objects_round_trip(tmp_path: Path):
    store = ObjectStore(f"file://{tmp_path}/new folder")
    await store.put("a/b", b"1")
    assert await store.get("a/b") == b"1"
    assert await store.list("a") == ["a/b"]
    assert await store.exists("a/b")
    await store.delete("a/b")
    await store.delete("a/b")
    with pytest.raises(NotFound):
        await store.get("a/b")


async def test_object_on_a_full_disk(small_disk: Path):
    store = ObjectStore(f"file://{small_disk}")
    with pytest.raises(QuotaExceeded) as caught:
        await store.put("big", b"x" * 4_000_000)
    assert caught.value.which == "disk"
    assert not await store.exists("big")
    await store.put("small", b"x")


async def test_transactions_commit_and_roll_back(tmp_path: Path):
    db = Database(f"sqlite+aiosqlite:///{tmp_path}/x.sqlite")
    async with db.begin() as connection:
        await connection.execute(text("create table t (n integer)"))
    with pytest.raises(ZeroDivisionError):
        async with db.begin() as connection:
            await connection.execute(text("insert into t values (1)"))
            _ = 1 / 0

    async def add(n: int) -> None:
        async with db.begin() as connection:
            await connection.execute(text("insert into t values (:n)"), {"n": n})

    await asyncio.gather(*(add(n) for n in range(20)))
    async with db.read() as connection:
        assert (await connection.execute(text("select count(*) from t"))).scalar() == 20
    await db.close()


async def test_database_on_a_full_disk(small_disk: Path):
    db = Database(f"sqlite+aiosqlite:///{small_disk}/x.sqlite")
    async with db.begin() as connection:
        await connection.execute(text("create table t (d blob)"))
    with pytest.raises(QuotaExceeded, match="disk is full"):
        async with db.begin() as connection:
            await connection.execute(text("insert into t values (zeroblob(4000000))"))
    async with db.begin() as connection:
        await connection.execute(text("insert into t values ('ok')"))
        assert (await connection.execute(text("select count(*) from t"))).scalar() == 1
    await db.close()


async def test_a_cancelled_transaction_leaves_no_lock_behind(tmp_path: Path) -> None:
    """Cancelled at any await, and the exceptions kept: SQLAlchemy's abandoned connection must not hold the lock."""
    url = f"sqlite+aiosqlite:///{tmp_path}/one.db"
    database, other = Database(url), Database(url)
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE t (x INTEGER)"))

    async def two_rows() -> None:
        async with database.begin() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            await connection.execute(text("SELECT x FROM t"))
            await connection.execute(text("INSERT INTO t VALUES (1)"))

    kept = []
    for number in range(150):
        task = asyncio.create_task(two_rows())
        await asyncio.sleep(number * 2e-5)
        task.cancel()
        if number % 2:
            await asyncio.sleep(1e-4)
            task.cancel()
        kept.append((await asyncio.gather(task, return_exceptions=True))[0])
        async with asyncio.timeout(5), other.begin() as connection:
            await connection.execute(text("INSERT INTO t VALUES (2)"))
    async with other.read() as connection:
        whole = (await connection.execute(text("SELECT count(*) FROM t WHERE x = 1"))).scalar_one()
    assert whole % 2 == 0
    assert any(isinstance(error, asyncio.CancelledError) for error in kept)
    await database.close()
    await other.close()
