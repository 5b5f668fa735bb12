"""The SQL store on a real SQLite file, its schema made by the migrations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from catalog_builders import make_task, nop, oracle, reference

from longshore_common.database import Database, migrate
from longshore_common.errors import Conflict, Internal, NotFound
from longshore_common.objects import ObjectStore
from longshore_task_catalog.domain.datasets import make_dataset
from longshore_task_catalog.domain.model import Finding, Severity, TaskState
from longshore_task_catalog.store.bundles import ObjectBundleStore
from longshore_task_catalog.store.schema import metadata, tasks
from longshore_task_catalog.store.sql_store import SqlTaskStore


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlTaskStore]:
    url = f"sqlite+aiosqlite:///{tmp_path}/catalog.sqlite"
    await asyncio.to_thread(migrate, url, "longshore_task_catalog.store")
    store = SqlTaskStore(Database(url))
    yield store
    await store.close()


async def test_schema_is_that_of_the_migrations(store: SqlTaskStore) -> None:
    def columns(connection: sa.Connection) -> dict[str, set[str]]:
        inspector = sa.inspect(connection)
        return {name: {column["name"] for column in inspector.get_columns(name)} for name in metadata.tables}

    async with store._database.read() as connection:
        made = await connection.run_sync(columns)
    assert made == {name: set(table.columns.keys()) for name, table in metadata.tables.items()}


async def test_a_task_comes_back_as_it_was(store: SqlTaskStore) -> None:
    task = make_task()
    content = replace(task.content, findings=(Finding(Severity.WARNING, "r", "w:1", "m"),), solution_env={"A": "b"})
    task = replace(task, content=content)
    assert await store.add_task(task)
    assert await store.get_task(task.digest) == task
    assert await store.get_task("sha256:zz") is None


async def test_a_row_stored_before_images_and_networks_were_read_is_readable(store: SqlTaskStore) -> None:
    await store.add_task(make_task())
    async with store._database.begin() as connection:
        stored = json.loads((await connection.execute(sa.select(tasks.c.content))).scalar_one())
        for name in ("docker_image", "network_mode", "allowed_hosts"):
            del stored[name]
        await connection.execute(sa.update(tasks).values(content=json.dumps(stored)))
    assert await store.get_task("sha256:aa") == make_task()


async def test_the_same_digest_is_stored_once(store: SqlTaskStore) -> None:
    assert await store.add_task(make_task())
    assert not await store.add_task(make_task(name="other"))
    stored = await store.get_task("sha256:aa")
    assert stored is not None
    assert stored.content.name == "acme/count"


async def test_concurrent_adds_make_one_task(store: SqlTaskStore) -> None:
    created = await asyncio.gather(*(store.add_task(make_task()) for _ in range(8)))
    assert sum(created) == 1


async def test_evidence_changes_the_state(store: SqlTaskStore) -> None:
    await store.add_task(make_task())
    task = await store.add_evidence("sha256:aa", [oracle(1.0), nop(0.0)])
    assert task.state is TaskState.EVALUABLE
    task = await store.add_evidence("sha256:aa", [reference(0.0, 1.0)])
    assert task.state is TaskState.TRAINABLE
    assert await store.get_task("sha256:aa") == task
    assert [one.kind.value for one in task.evidence] == ["oracle", "nop", "reference"]


async def test_a_reference_reported_twice_counts_once(store: SqlTaskStore) -> None:
    await store.add_task(make_task())
    for _ in range(2):
        task = await store.add_evidence("sha256:aa", [reference(0.0, 1.0)])
    assert len(task.evidence) == 1


async def test_evidence_of_an_unknown_task_is_refused(store: SqlTaskStore) -> None:
    with pytest.raises(NotFound):
        await store.add_evidence("sha256:aa", [oracle(1.0)])


async def test_pages_cover_everything_once_and_in_order(store: SqlTaskStore) -> None:
    keys = [(f"n{index % 3}", f"sha256:{index:03d}") for index in range(25)]
    for name, digest in keys:
        await store.add_task(make_task(digest, name))
    seen: list[tuple[str, str]] = []
    after = None
    while True:
        page = await store.list_tasks(None, after, 10)
        seen += [(task.content.name, task.digest) for task in page.tasks]
        if (after := page.next_after) is None:
            break
    assert seen == sorted(keys)
    some = frozenset(digest for _, digest in keys[:7])
    page = await store.list_tasks(some, None, 5)
    rest = await store.list_tasks(some, page.next_after, 5)
    assert (len(page.tasks), len(rest.tasks), rest.next_after) == (5, 2, None)


async def test_more_tasks_than_one_statement_may_bind(store: SqlTaskStore) -> None:
    await store.add_task(make_task("sha256:0001"))
    digests = [f"sha256:{index:04d}" for index in range(1200)]
    assert len(await store.unknown_tasks(digests)) == 1199
    assert len((await store.list_tasks(frozenset(digests), None, 100)).tasks) == 1


async def test_frozen_names_keep_their_content(store: SqlTaskStore) -> None:
    dataset = make_dataset("d", [("train", ["t1"])], 7)
    assert await store.freeze(dataset) == (dataset, True)
    again, created = await store.freeze(make_dataset("d", [("train", ["t1"])], 9))
    assert (again, created) == (dataset, False)
    with pytest.raises(Conflict, match="1 new"):
        await store.freeze(make_dataset("d", [("train", ["t1", "t2"])], 9))
    assert await store.get_dataset("d") == dataset
    assert await store.list_datasets() == [dataset]


async def test_bundles_by_digest(tmp_path: Path) -> None:
    bundles = ObjectBundleStore(ObjectStore((tmp_path / "objects").as_uri()))
    assert not await bundles.exists("sha256:aa")
    await bundles.put("sha256:aa", b"data")
    assert await bundles.exists("sha256:aa")
    assert await bundles.get("sha256:aa") == b"data"
    with pytest.raises(Internal, match="import the task again"):
        await bundles.get("sha256:bb")
