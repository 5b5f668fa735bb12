"""What every sandbox runtime offers. One contract test suite runs against all of them (tests/contract)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO, Protocol

from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Image, NetworkClass, TaskEnvironment, Template


class SandboxFailed(Unavailable):
    """A sandbox did not start, or is gone, for a reason of its own; details["end_reason"] names it for clients."""

    def __init__(self, reason: EndReason, message: str, *, retryable: bool = False) -> None:
        super().__init__(message, details={"end_reason": reason.value}, retryable=retryable)
        self.reason = reason


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


class HostedAgent(Protocol):
    """What the scheduler itself can do inside a sandbox. Paths are absolute; raises Unavailable once it has ended."""

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


@dataclass(frozen=True)
class RemoteAgent:
    """An agent inside the sandbox, at a gRPC target."""

    address: str
    direct: bool = True
    """Whether callers reach it themselves; else the scheduler relays (a tunnel of its own)."""


class RunningSandbox(Protocol):
    """A started sandbox."""

    @property
    def enforcement(self) -> Mapping[str, str]:
        """For each limit, what makes it hold."""
        ...

    @property
    def ended(self) -> asyncio.Future[SandboxEnd]:
        """Done when the sandbox is gone."""
        ...

    @property
    def instance(self) -> str:
        """Which incarnation it is (the pod's UID); empty where there is only one."""
        ...

    @property
    def node(self) -> str:
        """The machine it runs on, where that is known."""
        ...

    @property
    def image_digest(self) -> str:
        """Digest of what it really runs; empty: that of its template's image."""
        ...

    @property
    def access(self) -> HostedAgent | RemoteAgent:
        """The way in."""
        ...

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


@dataclass(frozen=True)
class ClaimTag:
    """Whose a sandbox is, as marked on it; deadline_s: seconds from the claim after which the runtime ends it."""

    run_id: str
    attempt_id: str
    task_digest: str
    idempotency_key: str
    deadline_s: float


@dataclass(frozen=True)
class Removed:
    """Something a sweep removed, or would."""

    kind: str
    name: str
    why: str


class Runtime(Protocol):
    """Makes images and sandboxes."""

    @property
    def name(self) -> str: ...

    @property
    def networks(self) -> frozenset[NetworkClass]:
        """The classes it can hold a sandbox to."""
        ...

    @property
    def default_network(self) -> NetworkClass:
        """The class of a claim and a task that name none."""
        ...

    @property
    def outlives_scheduler(self) -> bool:
        """Whether sandboxes go on when a scheduler ends, and several schedulers share them."""
        ...

    async def start(self) -> None:
        """Raises Unavailable when this machine or cluster cannot run it."""
        ...

    async def stop(self) -> None:
        """Frees what this process holds; ends every sandbox unless they outlive it."""
        ...

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        """Removes what belongs to no sandbox in `keep` (all kinds of objects); young starts are left alone."""
        ...

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """The image of a task's environment, built at most once; bundle gives the task's tar.zst.

        Raises InvalidSpec naming the line that cannot be honoured.
        """
        ...

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> RunningSandbox:
        """A fresh sandbox, ready for commands.

        Raises SandboxFailed with the typed reason, Unavailable when the runtime itself cannot be reached.
        """
        ...

    async def find(self, sandbox_id: str, instance: str) -> RunningSandbox | SandboxEnd:
        """A sandbox that was claimed before, perhaps through another scheduler; or how that incarnation ended."""
        ...

    @property
    def population(self) -> int:
        """Sandboxes that hold resources now: claimed, warm and starting, of all schedulers."""
        ...


@dataclass(frozen=True)
class WarmSandbox:
    """A started sandbox that nobody has claimed."""

    sandbox_id: str
    template_key: str
    ready: bool
    """Its agent answers; else it is still starting."""


class WarmRuntime(Runtime, Protocol):
    """A runtime that can start sandboxes ahead of their claims."""

    def warm(self) -> Sequence[WarmSandbox]:
        """All unclaimed sandboxes, of all schedulers, oldest first."""
        ...

    def ready(self, template_key: str) -> Iterable[str]:
        """Ids of the ready ones of a template, longest ready first; cheap, for it is asked at every claim."""
        ...

    async def start_warm(self, sandbox_id: str, template: Template) -> None:
        """Asks for one; it shows up in `warm`. Raises SandboxFailed, Unavailable."""
        ...

    async def claim(self, sandbox_id: str, template: Template, tag: ClaimTag) -> RunningSandbox | None:
        """Takes a warm sandbox and puts the template's layer into it. At most one caller ever gets it.

        None when another took it, or it is gone or broken. Raises InvalidSpec when the layer cannot be put there.
        """
        ...

    async def discard(self, sandbox_id: str) -> None:
        """Ends a warm sandbox; a claimed or absent one is left alone."""
        ...
