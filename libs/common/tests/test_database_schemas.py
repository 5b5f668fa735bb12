"""Services share one Postgres, each in its own schema; several processes may migrate one schema at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from sqlalchemy import text

from longshore_common.database import Database, migrate, revisions, shown, with_schema
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_common.settings import ServiceSettings

CATALOG, CONTROLLER = "longshore_task_catalog.store", "longshore_controller.store"


async def tables(url: str) -> set[str]:
    database = Database(url)
    query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    async with database.read() as connection:
        found = {row[0] for row in await connection.execute(text(query))}
    await database.close()
    return found


def test_each_service_has_its_own_tables_and_history(postgres_server: str) -> None:
    catalog, controller = with_schema(postgres_server, "one_catalog"), with_schema(postgres_server, "one_controller")
    migrate(catalog, CATALOG)
    migrate(controller, CONTROLLER)
    ours, theirs = asyncio.run(tables(catalog)), asyncio.run(tables(controller))
    assert "tasks" in ours
    assert "runs" in theirs
    assert ours & theirs == {"alembic_version"}
    assert revisions(catalog, CATALOG)[0] == revisions(catalog, CATALOG)[1]


def test_processes_that_migrate_at_once_wait_for_each_other(postgres_server: str) -> None:
    url = with_schema(postgres_server, "contended")
    code = f"from longshore_common.database import migrate; migrate({url!r}, {CONTROLLER!r})"
    racing = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(60) for process in racing] == [0] * 4
    assert revisions(url, CONTROLLER)[0] == revisions(url, CONTROLLER)[1]


def test_an_empty_schema_has_no_revision(postgres_server: str) -> None:
    assert revisions(with_schema(postgres_server, "nothing_yet"), CATALOG)[0] is None


@pytest.mark.parametrize("name", ["Bad", "1st", 'a"; DROP SCHEMA public; --', "a" * 64])
def test_a_bad_schema_name_is_refused(postgres_server: str, name: str) -> None:
    with pytest.raises(InvalidSpec, match="database schema"):
        migrate(with_schema(postgres_server, name), CATALOG)


@pytest.mark.parametrize(
    "change",
    [{"port": 1}, {"host": "no-such-host.invalid"}, {"database": "absent"}],
    ids=lambda change: next(iter(change)),
)
def test_a_database_that_is_not_there_is_unavailable_after_the_patience(
    postgres_server: str, change: dict[str, object]
) -> None:
    from sqlalchemy.engine import make_url

    url = make_url(postgres_server).set(**change).render_as_string(hide_password=False)
    with pytest.raises(Unavailable, match="the database cannot be used"):
        migrate(url, CATALOG, patience_s=0.1)


def test_settings_put_the_schema_into_the_url_of_postgres_only() -> None:
    postgres = ServiceSettings(database_url="postgresql+asyncpg://a:b@h/d", database_schema="catalog")
    assert postgres.resolved_database_url("x") == "postgresql+asyncpg://a:b@h/d?schema=catalog"
    assert "b@" not in shown(postgres.resolved_database_url("x"))
    sqlite = ServiceSettings(database_url="sqlite+aiosqlite:////tmp/x", database_schema="catalog")
    assert sqlite.resolved_database_url("x") == "sqlite+aiosqlite:////tmp/x"
