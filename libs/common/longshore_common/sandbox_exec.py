"""What can be done inside one sandbox and what comes out: a protocol and plain records, free of gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Captured:
    """One output stream as far as it was kept. total counts all bytes that the command wrote."""

    head: bytes = b""
    tail: bytes = b""
    """Empty when nothing is missing between head and the end."""
    total: int = 0

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail were dropped."""
        return self.total > len(self.head) + len(self.tail)

    def joined(self) -> bytes:
        """Head and tail, with a line between them that says how many bytes are missing."""
        if not self.truncated:
            return self.head + self.tail
        missing = self.total - len(self.head) - len(self.tail)
        return b"%s\n[... %d bytes left out ...]\n%s" % (self.head, missing, self.tail)


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. exit_code is 0-255, or -1 when a signal killed it; duration in seconds."""

    exit_code: int
    stdout: Captured = Captured()
    stderr: Captured = Captured()
    signal: int = 0
    timed_out: bool = False
    oom_killed: bool = False
    duration_s: float = 0.0

    @property
    def status(self) -> int:
        """Exit status as a shell states it: 128 + signal when a signal killed the command."""
        return 128 + self.signal if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class FileStat:
    """A path inside a sandbox; kind is "file", "dir", "symlink" or "other" (links are not followed)."""

    exists: bool
    kind: str = ""
    size: int = 0
    mode: int = 0


class SandboxAgent(Protocol):
    """What can be done inside one sandbox. All paths are absolute; every method raises LongshoreError."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        output_cap: int = 0,
    ) -> ExecResult:
        """Runs argv once and waits for its end; output_cap bytes are kept per stream (0: the agent's default)."""
        ...

    async def kill_all(self) -> int:
        """Kills every process in the sandbox; how many."""
        ...

    async def remove(self, paths: Sequence[str]) -> None:
        """Removes files and folders; absent is no error."""
        ...

    async def stat(self, path: str) -> FileStat:
        """What is at path; links are not followed."""
        ...

    async def upload(self, path: str, data: bytes, *, tar: bool = False, replace: bool = False, mode: int = 0) -> None:
        """Writes a file, or unpacks an uncompressed tar into a folder (replace: emptied first)."""
        ...

    async def download(self, path: str, *, max_bytes: int, tar: bool = False) -> bytes:
        """A file, or a folder as an uncompressed tar; refused when larger than max_bytes."""
        ...
