"""One database per service: SQLite in WAL or Postgres behind the same few calls.

SQLite allows one writer; writers queue on a lock here rather than fail with "database is locked". Transactions start
with BEGIN IMMEDIATE, so that a read-then-write never has to be retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from longshore_common.errors import LongshoreError, QuotaExceeded, Unavailable

T = TypeVar("T")

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
    """The error of the tree for a full disk or an unreachable database; None for any other fault."""
    text = str(error)
    if any(part in text for part in _FULL) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return QuotaExceeded("the disk is full: nothing was written; free space and try again", which="disk")
    if isinstance(error, OperationalError | ConnectionError):
        return Unavailable(f"the database cannot be used: {text.splitlines()[0]}")
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
        self.url = url
        self.sqlite = make_url(url).get_backend_name() == "sqlite"
        if self.sqlite:
            path = make_url(url).database
            if path and path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._writer = asyncio.Lock()
        self.engine: AsyncEngine = create_async_engine(url, **({} if self.sqlite else {"pool_pre_ping": True}))
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


def _sync_url(url: str) -> str:
    return url.replace("+aiosqlite", "")


def migrate(url: str, package: str) -> None:
    """Brings the schema to the newest revision of `<package>/migrations`. Blocking: call it in a thread.

    Runs the service's Alembic history; the history is the only thing that creates or alters tables.
    """
    from alembic import command
    from alembic.config import Config

    root = importlib.import_module(package).__path__[0]
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", f"{root}/migrations")
    config.attributes["url"] = url
    with _mapped():
        command.upgrade(config, "head")


def run_migrations(config: Any, context: Any) -> None:
    """The whole of a service's migrations/env.py: `run_migrations(context.config, context)`."""
    from sqlalchemy import pool

    url = config.attributes["url"]
    engine = create_async_engine(url, poolclass=pool.NullPool)

    def run(connection: Any) -> None:
        context.configure(connection=connection, target_metadata=None, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()

    async def go() -> None:
        async with engine.connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
        await engine.dispose()

    asyncio.run(go())
