"""One database per service: SQLite in WAL or Postgres behind the same few calls.

SQLite allows one writer; writers queue on a lock here rather than fail with "database is locked". Transactions start
with BEGIN IMMEDIATE, so that a read-then-write never has to be retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from longshore_common.errors import InvalidSpec, LongshoreError, QuotaExceeded, Unavailable
from longshore_common.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

SCHEMA = "schema"
"""Query field of our URLs: the Postgres schema of one service. SQLite has a file per service instead."""

_SCHEMA_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RETRY_S = 2.0
_FULL = ("database or disk is full", "No space left on device", "could not extend file")


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits for work whatever happens meanwhile; a cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # Retrieved: nobody is told.
        raise cancelled
    return task.result()


class _WholeStatements(AsyncConnection):
    """A connection whose statements a cancellation does not break off.

    A broken-off SELECT stays unfinished on the driver's side; SQLite then keeps the closed connection and its write
    lock until the last reference to the cursor is gone, which may be the exception's.
    """

    async def execute(self, *arguments: Any, **keywords: Any) -> Any:
        return await _to_its_end(super().execute(*arguments, **keywords))

    async def exec_driver_sql(self, *arguments: Any, **keywords: Any) -> Any:
        return await _to_its_end(super().exec_driver_sql(*arguments, **keywords))

    async def commit(self) -> None:
        await _to_its_end(super().commit())

    async def rollback(self) -> None:
        await _to_its_end(super().rollback())


def storage_error(error: Exception) -> LongshoreError | None:
    """The error of the tree for a full disk or an unreachable database; None for any other fault.

    A driver's error without a statement comes from connecting: wrong password, no such database, still starting.
    """
    said = str(error)
    if any(part in said for part in _FULL) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return QuotaExceeded("the disk is full: nothing was written; free space and try again", which="disk")
    connecting = isinstance(error, DBAPIError) and error.statement is None
    if connecting or isinstance(error, OperationalError | ConnectionError | TimeoutError | socket.gaierror):
        return Unavailable(f"the database cannot be used: {said.splitlines()[0]}")
    return None


@contextlib.contextmanager
def _mapped() -> Any:
    try:
        yield
    except (DBAPIError, OSError) as error:
        mapped = storage_error(error)
        if mapped is None:
            raise
        raise mapped from error


class Database:
    """A connection pool with transactions.

    Raises (from every block): QuotaExceeded(which="disk") when the disk is full, Unavailable when it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        """url: a SQLAlchemy URL; for Postgres `?schema=NAME` chooses the schema."""
        self.url = url
        parsed, arguments = _arguments(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if self.sqlite:
            path = make_url(url).database
            if path and path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._writer = asyncio.Lock()
        self.engine: AsyncEngine = create_async_engine(parsed, **arguments, pool_pre_ping=not self.sqlite)
        if self.sqlite:
            event.listen(self.engine.sync_engine, "connect", _on_sqlite_connect)

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A read-write transaction: committed at the end of the block, rolled back when it raises."""
        with _mapped():
            if not self.sqlite:
                async with self.engine.begin() as connection:
                    yield connection
                return
            async with self._writer, _WholeStatements(self.engine) as connection:
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    await connection.rollback()
                    raise
                await connection.commit()

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A read-only view."""
        with _mapped():
            async with _WholeStatements(self.engine) as connection:
                yield connection

    async def close(self) -> None:
        """Closes all connections."""
        await self.engine.dispose()


def with_schema(url: str, schema: str) -> str:
    """The URL with a Postgres schema in it; unchanged for SQLite."""
    parsed = make_url(url)
    if not schema or parsed.get_backend_name() == "sqlite":
        return url
    return parsed.update_query_dict({SCHEMA: schema}).render_as_string(hide_password=False)


def _arguments(url: str) -> tuple[URL, dict[str, Any]]:
    """What SQLAlchemy takes: the URL without our field, and the engine's arguments."""
    parsed = make_url(url)
    schema = parsed.query.get(SCHEMA)
    if schema is None:
        return parsed, {}
    settings = {"search_path": _checked(str(schema))}
    return parsed.difference_update_query([SCHEMA]), {"connect_args": {"server_settings": settings}}


def _checked(schema: str) -> str:
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidSpec(
            f"database schema {schema!r} must be letters, digits and _, and start with a letter",
            field="database_schema",
        )
    return schema


def migrate(url: str, package: str, patience_s: float = 0.0) -> None:
    """Brings the schema to the newest revision of `<package>/migrations`. Blocking: call it in a thread.

    Runs the service's Alembic history; the history is the only thing that creates or alters tables. On Postgres the
    schema is created when missing, and of several processes that migrate one schema, one does and the others wait.

    Args:
        patience_s: how long a database that cannot be reached is tried again, seconds.

    Raises:
        Unavailable: it cannot be reached.
        QuotaExceeded: the disk is full.
    """
    from alembic import command

    config = alembic_config(url, package)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with _mapped():
                command.upgrade(config, "head")
            return
        except Unavailable as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("waiting for the database", url=shown(url), error=error.message)
            time.sleep(_RETRY_S)


def alembic_config(url: str, package: str) -> Any:
    """Alembic's configuration of a service's history on a database."""
    from alembic.config import Config

    root = importlib.import_module(package).__path__[0]
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", f"{root}/migrations")
    config.attributes["url"] = url
    return config


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    return make_url(url).render_as_string(hide_password=True)


def revisions(url: str, package: str) -> tuple[str | None, str | None]:
    """(revision of the database, newest revision of the code). Blocking: call it in a thread.

    Raises:
        Unavailable: the database cannot be reached.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    found: list[str | None] = []

    def look(connection: Any) -> None:
        found.append(MigrationContext.configure(connection).get_current_revision())

    head = ScriptDirectory.from_config(alembic_config(url, package)).get_current_head()
    with _mapped():
        asyncio.run(_on_connection(url, look))
    return found[0], head


async def _on_connection(url: str, work: Callable[[Any], None]) -> None:
    from sqlalchemy import pool

    parsed, arguments = _arguments(url)
    engine = create_async_engine(parsed, poolclass=pool.NullPool, **arguments)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(work)
            await connection.commit()
    finally:
        await engine.dispose()


def run_migrations(config: Any, context: Any) -> None:
    """The whole of a service's migrations/env.py: `run_migrations(context.config, context)`."""
    url = config.attributes["url"]

    def run(connection: Any) -> None:
        _prepare(connection, make_url(url).query.get(SCHEMA))
        context.configure(connection=connection, target_metadata=None, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()

    asyncio.run(_on_connection(url, run))


def _prepare(connection: Any, schema: Any) -> None:
    """On Postgres: the lock of this schema, until the transaction ends, and the schema itself."""
    if connection.dialect.name != "postgresql":
        return
    name = _checked(str(schema)) if schema else "public"
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"longshore:{name}"})
    connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{name}"'))
