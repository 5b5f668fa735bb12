"""What grading needs from outside: tasks, sandboxes. Implemented in clients/, faked in tests."""

from dataclasses import dataclass
from typing import Protocol

from longshore_common.sandbox_exec import SandboxAgent
from longshore_reward_verifier.domain.task_spec import TaskSpec


@dataclass(frozen=True)
class GradedTask:
    """One task, ready to be graded. Archives are uncompressed tars; solution_tar is None without solution/solve.sh."""

    digest: str
    spec: TaskSpec
    tests_tar: bytes
    tests_digest: str
    test_argv: tuple[str, ...]
    solution_tar: bytes | None
    solution_argv: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that it keeps in memory."""
        return len(self.tests_tar) + len(self.solution_tar or b"")


@dataclass(frozen=True)
class Sandbox:
    """A live sandbox and the agent in it."""

    sandbox_id: str
    image_digest: str
    agent: SandboxAgent


@dataclass(frozen=True)
class SandboxEnd:
    """What the scheduler says of a sandbox. reason is "" while it lives, else the scheduler's word, e.g. "oom"."""

    image_digest: str
    reason: str = ""
    detail: str = ""


class Tasks(Protocol):
    """Tasks by digest."""

    async def get(self, digest: str) -> GradedTask:
        """Raises NotFound, InvalidSpec (the bundle cannot be graded) or Unavailable."""
        ...


class Sandboxes(Protocol):
    """Fresh sandboxes, and what became of others."""

    async def look_up(self, sandbox_id: str) -> SandboxEnd:
        """Raises LongshoreError; NotFound when the scheduler never granted it."""
        ...

    async def claim(self, task_digest: str, run_id: str, attempt_id: str, ttl_s: float) -> Sandbox:
        """A fresh sandbox of the task's image. Raises LongshoreError."""
        ...

    async def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox; absent is no error."""
        ...
