"""`TaskStore` on SQLite or Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore_common.database import Database
from longshore_common.errors import NotFound
from longshore_task_catalog.domain.datasets import check_same
from longshore_task_catalog.domain.model import Dataset, Evidence, EvidenceKind, Page, Task
from longshore_task_catalog.domain.states import derive
from longshore_task_catalog.store.rows import (
    dataset_row,
    evidence_row,
    task_row,
    to_dataset,
    to_evidence,
    to_task,
)
from longshore_task_catalog.store.schema import datasets, evidence, tasks

T = TypeVar("T")
# SQLite binds 999 variables at most where it is old.
_IN_CHUNK = 500


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _IN_CHUNK):
        yield items[start : start + _IN_CHUNK]


class SqlTaskStore:
    """Implements domain.ports.TaskStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def close(self) -> None:
        """Closes the database."""
        await self._database.close()

    async def add_task(self, task: Task) -> bool:
        try:
            async with self._database.begin() as connection:
                if await _row(connection, task.digest) is not None:
                    return False
                await connection.execute(sa.insert(tasks).values(task_row(task)))
        except IntegrityError:
            # Another replica stored the same content between our look and our insert.
            return False
        return True

    async def get_task(self, digest: str) -> Task | None:
        async with self._database.read() as connection:
            return await _load(connection, digest)

    async def find_by_name(self, name: str) -> list[str]:
        async with self._database.read() as connection:
            query = sa.select(tasks.c.digest).where(tasks.c.name == name).order_by(tasks.c.digest)
            return list((await connection.execute(query)).scalars())

    async def list_tasks(self, digests: frozenset[str] | None, after: tuple[str, str] | None, limit: int) -> Page:
        async with self._database.read() as connection:
            keys = await _keys(connection, digests, after, limit + 1)
            rows = {}
            for chunk in _chunks([digest for _, digest in keys[:limit]]):
                found = await connection.execute(sa.select(tasks).where(tasks.c.digest.in_(chunk)))
                rows.update({row.digest: row for row in found})
            known = await _evidence_of(connection, list(rows))
        page = tuple(to_task(rows[digest], known[digest]) for _, digest in keys[:limit])
        return Page(page, keys[limit - 1] if len(keys) > limit else None)

    async def unknown_tasks(self, digests: list[str]) -> list[str]:
        known: set[str] = set()
        async with self._database.read() as connection:
            for chunk in _chunks(digests):
                query = sa.select(tasks.c.digest).where(tasks.c.digest.in_(chunk))
                known.update((await connection.execute(query)).scalars())
        return [digest for digest in digests if digest not in known]

    async def add_evidence(self, digest: str, new: list[Evidence]) -> Task:
        async with self._database.begin() as connection:
            row = await _row(connection, digest, lock=True)
            if row is None:
                raise NotFound(f"no task {digest}; import it first", details={"digest": digest})
            known = (await _evidence_of(connection, [digest]))[digest]
            fresh = [one for one in new if not _is_repeated(one, known)]
            for one in fresh:
                await connection.execute(sa.insert(evidence).values(evidence_row(digest, one)))
            state, reason = derive([*known, *fresh])
            values = {"state": state.value, "state_reason": reason}
            await connection.execute(sa.update(tasks).where(tasks.c.digest == digest).values(values))
            task = await _load(connection, digest)
        assert task is not None
        return task

    async def freeze(self, dataset: Dataset) -> tuple[Dataset, bool]:
        try:
            async with self._database.begin() as connection:
                found = await _dataset(connection, dataset.name)
                if found is None:
                    await connection.execute(sa.insert(datasets).values(dataset_row(dataset)))
                    return dataset, True
        except IntegrityError:
            found = await self.get_dataset(dataset.name)
            assert found is not None
        check_same(found, dataset)
        return found, False

    async def get_dataset(self, name: str) -> Dataset | None:
        async with self._database.read() as connection:
            return await _dataset(connection, name)

    async def list_datasets(self) -> list[Dataset]:
        async with self._database.read() as connection:
            rows = await connection.execute(sa.select(datasets).order_by(datasets.c.name))
            return [to_dataset(row) for row in rows]


def _is_repeated(one: Evidence, known: Sequence[Evidence]) -> bool:
    """A reference group that is reported again (a retried call) counts once."""
    return one.kind is EvidenceKind.REFERENCE and any(
        other.kind is EvidenceKind.REFERENCE and other.detail == one.detail for other in known
    )


async def _row(connection: AsyncConnection, digest: str, lock: bool = False) -> sa.Row[tuple[object, ...]] | None:
    query = sa.select(tasks).where(tasks.c.digest == digest)
    return (await connection.execute(query.with_for_update() if lock else query)).one_or_none()


async def _load(connection: AsyncConnection, digest: str) -> Task | None:
    row = await _row(connection, digest)
    if row is None:
        return None
    return to_task(row, (await _evidence_of(connection, [digest]))[digest])


async def _evidence_of(connection: AsyncConnection, digests: Sequence[str]) -> dict[str, list[Evidence]]:
    found: dict[str, list[Evidence]] = defaultdict(list)
    for chunk in _chunks(digests):
        query = sa.select(evidence).where(evidence.c.task_digest.in_(chunk)).order_by(evidence.c.sequence)
        for row in await connection.execute(query):
            found[row.task_digest].append(to_evidence(row))
    return found


async def _keys(
    connection: AsyncConnection, digests: frozenset[str] | None, after: tuple[str, str] | None, limit: int
) -> list[tuple[str, str]]:
    """(name, digest) of up to `limit` tasks behind `after`, in order."""
    query = sa.select(tasks.c.name, tasks.c.digest)
    if after is not None:
        query = query.where(sa.tuple_(tasks.c.name, tasks.c.digest) > sa.tuple_(*map(sa.literal, after)))
    if digests is None:
        rows = await connection.execute(query.order_by(tasks.c.name, tasks.c.digest).limit(limit))
        return [(row.name, row.digest) for row in rows]
    keys = []
    for chunk in _chunks(sorted(digests)):
        keys += [(row.name, row.digest) for row in await connection.execute(query.where(tasks.c.digest.in_(chunk)))]
    return sorted(keys)[:limit]


async def _dataset(connection: AsyncConnection, name: str) -> Dataset | None:
    row = (await connection.execute(sa.select(datasets).where(datasets.c.name == name))).one_or_none()
    return to_dataset(row) if row is not None else None
