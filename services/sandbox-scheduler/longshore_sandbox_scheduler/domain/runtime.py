"""What every sandbox runtime offers. One contract test suite runs against all of them (tests/contract)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO, Protocol

from longshore_sandbox_scheduler.domain.model import EndReason, Image, Limits, TaskEnvironment


class OutputStream(StrEnum):
    """The two output streams of a command."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True)
class Command:
    """What to run. cwd and user empty: the image's; env is added to the image's."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    stdin: bytes = b""
    stdin_open: bool = False


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended: exit_code 0-255, or -1 with the signal that killed it."""

    exit_code: int
    signal: int = 0
    oom_killed: bool = False


@dataclass(frozen=True)
class SandboxEnd:
    """Why a sandbox ended."""

    reason: EndReason
    detail: str = ""


@dataclass(frozen=True)
class FileInfo:
    """A path in a sandbox; kind is "file", "dir", "symlink" or "other"."""

    exists: bool
    kind: str = ""
    size: int = 0
    mode: int = 0


OutputSink = Callable[[OutputStream, bytes], bool]
"""Takes output as it comes; True asks the runtime to read slower (what it brings is dropped anyway)."""


class RunningCommand(Protocol):
    """A started command."""

    async def wait(self) -> CommandEnd:
        """Waits until it ended and its output has been handed over.

        Raises InvalidSpec (user, cwd) when it could not start, Unavailable when the sandbox ended.
        """
        ...

    async def write_stdin(self, data: bytes, eof: bool) -> None:
        """Raises Conflict when stdin is closed."""
        ...

    async def send_signal(self, signum: int) -> None:
        """Signals the command itself, not its children."""
        ...

    async def kill_tree(self) -> None:
        """Kills the command and every process that descends from it, also those in sessions of their own."""
        ...


class RunningSandbox(Protocol):
    """A started sandbox. All paths are absolute inside it. Every method raises Unavailable once it has ended."""

    @property
    def enforcement(self) -> Mapping[str, str]:
        """For each limit, what makes it hold."""
        ...

    @property
    def ended(self) -> asyncio.Future[SandboxEnd]:
        """Done when the sandbox is gone."""
        ...

    async def start_command(self, command: Command, sink: OutputSink) -> RunningCommand: ...

    async def kill_all(self) -> int:
        """Kills all processes of the sandbox; how many."""
        ...

    async def upload_file(self, path: str, data: BinaryIO, mode: int) -> int:
        """Replaces a file in one step; its bytes."""
        ...

    async def upload_tar(self, path: str, data: BinaryIO, replace: bool) -> int:
        """Unpacks into a folder; nothing changes when an entry is refused."""
        ...

    def download(self, path: str, tar: bool, max_bytes: int) -> AsyncIterator[bytes]:
        """A file's bytes, or a folder as tar. Raises NotFound, InvalidSpec, QuotaExceeded."""
        ...

    async def stat(self, path: str) -> FileInfo: ...

    async def remove(self, paths: Sequence[str]) -> None: ...

    async def usage_over_limit(self) -> str | None:
        """Checks what only a watchdog can: the limit that is passed in words, or None."""
        ...

    async def stop(self, end: SandboxEnd) -> None:
        """Kills everything and frees what it used. Idempotent."""
        ...


@dataclass(frozen=True)
class PreparedImage:
    """An image, whether it had to be built, and how long that took."""

    image: Image
    built: bool
    seconds: float


class Runtime(Protocol):
    """Makes images and sandboxes."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Raises Unavailable when this machine cannot run it."""
        ...

    async def stop(self) -> None:
        """Ends every sandbox."""
        ...

    async def sweep(self, keep: Collection[str]) -> int:
        """Removes what sandboxes not in `keep` left behind; how many."""
        ...

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """The image of a task's environment, built at most once; bundle gives the task's tar.zst.

        Raises InvalidSpec naming the line that cannot be honoured.
        """
        ...

    async def launch(self, sandbox_id: str, image: Image, limits: Limits) -> RunningSandbox:
        """A fresh sandbox, ready for commands. Raises Unavailable with the reason."""
        ...
