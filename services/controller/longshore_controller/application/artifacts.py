"""Putting, listing and removing what run specs name by relative path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from longshore_common.errors import NotFound
from longshore_controller.domain.artifacts import (
    ArtifactHeader,
    StoredArtifact,
    check_apart,
    check_name,
    check_unused,
    uses,
)
from longshore_controller.domain.plan import ResolvedPlan
from longshore_controller.domain.ports import Artifacts, ArtifactStore
from longshore_controller.domain.run_state import FINISHED
from longshore_controller.domain.stores import RunStore
from longshore_controller.domain.vocabulary import RunState

_UNFINISHED = [state for state in RunState if state not in FINISHED]


@dataclass(frozen=True)
class ListedArtifact:
    """An artifact and the runs that have not ended and use it."""

    stored: StoredArtifact
    used_by: list[str]


class ArtifactService:
    """What a run that has not ended uses stays as it is."""

    def __init__(self, runs: RunStore, paths: Artifacts, store: ArtifactStore) -> None:
        self._runs = runs
        self._paths = paths
        self._store = store
        self._changing = asyncio.Lock()

    async def put(self, header: ArtifactHeader, data: AsyncIterator[bytes]) -> tuple[ListedArtifact, bool]:
        """The artifact, and whether it changed: the same content again is answered without reading the data.

        Raises:
            InvalidSpec: the data is not what the header says.
            Conflict: a run uses the name with other content, or something else is there.
            QuotaExceeded: larger than allowed, or the disk is full.
        """
        there = await self._allowed(header)
        if there is not None:
            return there, False
        async with self._store.received(header, data) as received, self._changing:
            # Once more: receiving takes its time.
            there = await self._allowed(header)
            if there is not None:
                return there, False
            return ListedArtifact(await self._store.place(header.name, received), []), True

    async def _allowed(self, header: ArtifactHeader) -> ListedArtifact | None:
        """What is there already with the same content. Raises Conflict."""
        known = {one.name: one for one in await self._store.all()}
        found = known.get(header.name)
        users = await self._users(header.name)
        if found is not None and (found.kind, found.digest) == (header.kind, header.digest):
            return ListedArtifact(found, users)
        check_apart(header.name, known)
        check_unused(header.name, users, "replace")
        return None

    async def listed(self) -> list[ListedArtifact]:
        """All, by name."""
        return [ListedArtifact(one, await self._users(one.name)) for one in await self._store.all()]

    async def remove(self, name: str) -> None:
        """Raises NotFound, Conflict when a run uses it."""
        check_name(name)
        async with self._changing:
            if name not in {one.name for one in await self._store.all()}:
                raise NotFound(f"no artifact {name!r}; `longshore artifact list` shows those that were pushed")
            check_unused(name, await self._users(name), "remove")
            await self._store.remove(name)

    async def _users(self, name: str) -> list[str]:
        place = self._paths.resolve(name)
        found = []
        for run in await self._runs.in_states(_UNFINISHED):
            paths = ResolvedPlan.model_validate_json(run.plan_json).paths
            if uses(place, (paths.model, paths.demonstrations)):
                found.append(run.run_id)
        return found
