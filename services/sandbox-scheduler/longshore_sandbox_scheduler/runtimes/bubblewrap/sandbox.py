"""A running bubblewrap sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from longshore_common.errors import Internal, InvalidSpec, LongshoreError, NotFound, QuotaExceeded, Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Enforcement, Image, Limits
from longshore_sandbox_scheduler.domain.runtime import Command, FileInfo, OutputSink, SandboxEnd
from longshore_sandbox_scheduler.runtimes.bubblewrap import pipes
from longshore_sandbox_scheduler.runtimes.bubblewrap.cgroups import MIB, Cgroup
from longshore_sandbox_scheduler.runtimes.bubblewrap.command import BubblewrapCommand, run_helper
from longshore_sandbox_scheduler.runtimes.bubblewrap.link import LauncherLink
from longshore_sandbox_scheduler.runtimes.bubblewrap.trees import tree_bytes

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXTRA_PROCESSES = 16
"""Init, and one supervisor for each command that runs at the moment."""

_OPEN_FILES = 65536
_STOP_WAIT_S = 10.0
_SETTLE_S = 0.05
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MISSING = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class SandboxPlace:
    """Where a sandbox lives on the host, and how many uids it has."""

    folder: Path
    uids: int
    processes_by_uid: bool
    """Whether RLIMIT_NPROC binds for this sandbox alone."""

    @property
    def upper(self) -> Path:
        """What the sandbox has written."""
        return self.folder / "upper"


class BubblewrapSandbox:
    """`domain.runtime.RunningSandbox`, and its `HostedAgent`."""

    def __init__(
        self, sandbox_id: str, image: Image, limits: Limits, link: LauncherLink, cgroup: Cgroup, place: SandboxPlace
    ) -> None:
        self.sandbox_id = sandbox_id
        self.place = place
        self.cgroup = cgroup
        self._image = image
        self._limits = limits
        self._link = link
        self._ended: asyncio.Future[SandboxEnd] = asyncio.get_running_loop().create_future()
        self._wish: SandboxEnd | None = None
        self._final_oom_kills = 0

    @property
    def ended(self) -> asyncio.Future[SandboxEnd]:
        return self._ended

    @property
    def instance(self) -> str:
        return ""

    @property
    def node(self) -> str:
        return ""

    @property
    def image_digest(self) -> str:
        return ""

    @property
    def access(self) -> BubblewrapSandbox:
        return self

    @property
    def enforcement(self) -> Mapping[str, str]:
        controllers = self.cgroup.controllers
        by_uid = Enforcement.RLIMIT_UID if self.place.processes_by_uid else Enforcement.ADVISORY
        return {
            "memory": (Enforcement.CGROUP if "memory" in controllers else Enforcement.ADVISORY).value,
            "processes": (Enforcement.CGROUP if "pids" in controllers else by_uid).value,
            "cpus": (Enforcement.CGROUP if "cpu" in controllers else Enforcement.ADVISORY).value,
            "file_size": Enforcement.RLIMIT.value,
            "storage": Enforcement.ADVISORY.value,
        }

    def note_ended(self) -> None:
        """The launcher says that all of its processes are gone."""
        if self._ended.done():
            return
        self._final_oom_kills = self.cgroup.oom_kills()
        end = self._wish
        if end is None:
            oom = self._final_oom_kills > 0
            detail = "its init was killed for memory" if oom else "its init process ended"
            end = SandboxEnd(EndReason.OOM if oom else EndReason.LOST, detail)
        self._ended.set_result(end)

    def _oom_kills(self) -> int:
        return max(self._final_oom_kills, self.cgroup.oom_kills())

    async def _settle(self) -> None:
        # Supervisors die a moment before the launcher says that their sandbox did.
        await asyncio.wait({self._ended}, timeout=_SETTLE_S if self._wish is None else _STOP_WAIT_S)

    def _check_alive(self) -> None:
        if self._ended.done() or self._wish is not None:
            end = self._ended.result() if self._ended.done() else self._wish
            assert end is not None
            raise Unavailable(
                f"sandbox {self.sandbox_id} has ended: {end.reason}" + (f" ({end.detail})" if end.detail else ""),
                details={"end_reason": end.reason.value},
                retryable=False,
            )

    async def start_command(self, command: Command, sink: OutputSink) -> BubblewrapCommand:
        self._check_alive()
        running = BubblewrapCommand(self._link, self.sandbox_id, self._oom_kills, self._settle)
        request = {
            "argv": list(command.argv),
            "env": {"PATH": PATH, **self._image.env, **command.env},
            "cwd": command.cwd or self._image.workdir,
            "user": command.user or self._image.user,
            "uids": self.place.uids,
            "rlimits": self._rlimits(),
        }
        await running.start(command, request, sink)
        return running

    def _rlimits(self) -> dict[str, int]:
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self._limits.max_file_mb * MIB,
            "RLIMIT_NPROC": self._limits.max_processes + EXTRA_PROCESSES,
            "RLIMIT_NOFILE": _OPEN_FILES,
        }
        if "memory" not in self.cgroup.controllers:
            limits["RLIMIT_AS"] = self._limits.memory_mb * MIB
        return limits

    async def kill_all(self) -> int:
        self._check_alive()
        answer = await run_helper(self._link, {"op": "kill_all", "sandbox": self.sandbox_id})
        return int(answer["killed"])

    async def _file(self, operation: str, data: int | None = None, **parameters: Any) -> dict[str, Any]:
        self._check_alive()
        request = {"op": "file", "sandbox": self.sandbox_id, "operation": operation, **parameters}
        answer = await run_helper(self._link, request, data)
        if "error" in answer:
            raise _file_error(answer)
        return answer

    async def upload_file(self, path: str, data: BinaryIO, mode: int) -> int:
        return int((await self._file("upload_file", data.fileno(), path=path, mode=mode))["bytes"])

    async def upload_tar(self, path: str, data: BinaryIO, replace: bool) -> int:
        return int((await self._file("upload_tar", data.fileno(), path=path, replace=replace))["bytes"])

    async def download(self, path: str, tar: bool, max_bytes: int) -> AsyncIterator[bytes]:
        ours, theirs = pipes.make_pipe(ours_reads=True)
        pipes.enlarge(ours)
        answer = asyncio.create_task(self._file("download", theirs, path=path, tar=tar, max_bytes=max_bytes))
        # The helper has its own copy once it answered or runs; ours must close for the end to be seen.
        answer.add_done_callback(lambda _: None)
        try:
            async for data in self._blocks(ours, theirs, answer):
                yield data
        finally:
            answer.cancel()
            with contextlib.suppress(asyncio.CancelledError, LongshoreError):
                await answer

    async def _blocks(self, ours: int, theirs: int, answer: asyncio.Task[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Blocks until the helper has answered and the pipe is empty."""
        try:
            while not answer.done():
                reading = asyncio.ensure_future(pipes.read_some(ours))
                await asyncio.wait({reading, answer}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    break
                yield reading.result()
            with contextlib.suppress(BlockingIOError):
                while data := os.read(ours, MIB):
                    yield data
            await answer
        finally:
            os.close(ours)
            os.close(theirs)

    async def stat(self, path: str) -> FileInfo:
        answer = await self._file("stat", path=path)
        if not answer["exists"]:
            return FileInfo(exists=False)
        return FileInfo(True, answer["kind"], answer["size"], answer["mode"])

    async def remove(self, paths: Sequence[str]) -> None:
        await self._file("remove", paths=list(paths))

    async def make_dirs(self, path: str) -> None:
        """Makes a folder and those above it."""
        await self._file("make_dirs", path=path)

    async def resolve(self, path: str) -> str:
        """The path with all links followed, as the sandbox sees them."""
        return str((await self._file("resolve", path=path))["path"])

    async def usage_over_limit(self) -> str | None:
        self._check_alive()
        used = await asyncio.to_thread(tree_bytes, self.place.upper)
        if used > self._limits.storage_mb * MIB:
            return f"storage: {used // MIB} MiB written, limit {self._limits.storage_mb} MiB"
        if "memory" in self.cgroup.controllers:
            return None
        answer = await run_helper(self._link, {"op": "memory", "sandbox": self.sandbox_id})
        resident = int(answer["bytes"])
        if resident > self._limits.memory_mb * MIB:
            return f"memory: {resident // MIB} MiB resident, limit {self._limits.memory_mb} MiB"
        return None

    async def stop(self, end: SandboxEnd) -> None:
        if self._ended.done():
            return
        self._wish = self._wish or end
        with contextlib.suppress(Unavailable):
            await self._link.notify({"op": "stop", "sandbox": self.sandbox_id})
        done, _ = await asyncio.wait({self._ended}, timeout=_STOP_WAIT_S)
        if not done:
            raise Internal(f"the processes of sandbox {self.sandbox_id} did not end within {_STOP_WAIT_S:.0f} s")


def _file_error(answer: dict[str, Any]) -> LongshoreError:
    kind, message = answer["error"], answer["message"]
    if kind == "not_found" or (kind == "errno" and answer["errno"] in _MISSING):
        return NotFound(message)
    if kind == "too_large":
        return QuotaExceeded(message, which="max_bytes")
    if kind == "errno" and answer["errno"] in _FULL:
        return QuotaExceeded(f"no space for it in the sandbox: {message}", which="disk")
    return InvalidSpec(message, field="path")


def bubblewrap_arguments(program: str, lowers: Sequence[str], upper: str, work: str) -> list[str]:
    """The command line of a sandbox: overlay as root, own namespaces, minimal /dev, no capability for its init.

    Init keeps one capability that commands do not have (and that means nothing in here), so that they can neither
    trace it nor look into it.
    """
    layers = [argument for lower in lowers for argument in ("--overlay-src", lower)]
    return [
        program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--die-with-parent", "--as-pid-1",
        "--hostname", "sandbox", "--clearenv", "--info-fd", "3",
        *layers, "--overlay", upper, work, "/",
        "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(64 * MIB), "--tmpfs", "/dev/shm",
        "--remount-ro", "/dev", "--cap-drop", "ALL", "--cap-add", "CAP_BLOCK_SUSPEND", "--", "/usr/bin/cat",
    ]  # fmt: skip
