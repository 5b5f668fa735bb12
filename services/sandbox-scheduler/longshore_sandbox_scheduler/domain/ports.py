"""What the scheduler needs from outside: records that outlive it, and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from longshore_sandbox_scheduler.domain.model import Sandbox, TaskEnvironment


class Records(Protocol):
    """Sandbox records."""

    async def insert(self, sandbox: Sandbox) -> None:
        """Raises Conflict when its idempotency key is taken."""
        ...

    async def update(self, sandbox: Sandbox) -> None:
        """Writes state, end, image and lease. Unknown: no effect."""
        ...

    async def get(self, sandbox_id: str) -> Sandbox | None: ...

    async def by_key(self, idempotency_key: str) -> Sandbox | None: ...

    async def list(self, run_id: str, include_ended: bool) -> Sequence[Sandbox]:
        """Oldest first; run_id empty: of all runs."""
        ...

    async def unended_of(self, owner: str) -> Sequence[Sandbox]:
        """What a scheduler of this name has not ended."""
        ...

    async def prune(self, ended_before_ms: int) -> int:
        """Forgets old ended records; how many."""
        ...


class Tasks(Protocol):
    """The task catalog."""

    async def environment(self, task_digest: str) -> TaskEnvironment:
        """Raises NotFound."""
        ...

    async def bundle(self, task_digest: str) -> bytes:
        """The task's files as tar.zst. Raises NotFound."""
        ...
