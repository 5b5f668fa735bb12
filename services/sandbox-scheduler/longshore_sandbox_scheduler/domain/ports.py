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

    async def expired(self, owner: str, now_ms: int) -> Sequence[Sandbox]:
        """What has not ended though its lease or its deadline has."""
        ...

    async def rename(self, sandbox_id: str, renamed: Sandbox) -> None:
        """Gives a starting record the id of the warm sandbox it got. Raises Conflict when that id has a record."""
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


class Leadership(Protocol):
    """Which of several schedulers does what only one may do: pools and sweeps."""

    @property
    def is_leader(self) -> bool: ...


class AlwaysLeader:
    """For a runtime that one scheduler has to itself."""

    @property
    def is_leader(self) -> bool:
        return True


class AgentTokens(Protocol):
    """Tokens for one incarnation of one sandbox, until its deadline."""

    def mint(self, sandbox_id: str, instance: str, deadline_at_ms: int) -> str: ...

    def sandbox_of(self, token: str) -> tuple[str, str]:
        """Sandbox id and instance. Raises PermissionDenied: forged, expired or for something else."""
        ...
