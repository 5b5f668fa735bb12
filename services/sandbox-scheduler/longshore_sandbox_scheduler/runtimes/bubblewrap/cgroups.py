"""Memory, process and CPU limits by control groups: version 1, version 2, or none where we may not make any."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.model import Limits

log = get_logger(__name__)

MIB = 1024 * 1024
_CPU_PERIOD_US = 100_000
_DESTROY_S = 5.0


class Cgroup(Protocol):
    """The groups of one sandbox."""

    controllers: frozenset[str]
    """Which of memory, pids, cpu bind here."""

    @property
    def procs_files(self) -> list[str]:
        """Files that a process writes "0" to in order to join."""
        ...

    def oom_kills(self) -> int:
        """How often the kernel killed a process for memory so far."""
        ...

    def destroy(self) -> None:
        """Kills what is left in it and removes it. Blocking."""
        ...


class CgroupParent(Protocol):
    """Where sandboxes' groups are made."""

    controllers: frozenset[str]

    def create(self, name: str, limits: Limits, extra_processes: int) -> Cgroup:
        """A group with these limits. Raises OSError."""
        ...

    def names(self) -> set[str]:
        """Groups that exist."""
        ...

    def adopt(self, name: str) -> Cgroup:
        """An existing group, for removal."""
        ...


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _destroy(folders: Collection[Path]) -> None:
    deadline = time.monotonic() + _DESTROY_S
    for folder in folders:
        while True:
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    log.warning("cannot remove a control group", path=str(folder), error=str(error))
                    break
            _kill_members(folder)
            time.sleep(0.005)


def _kill_members(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for line in (folder / "cgroup.procs").read_text().split():
            if int(line) > 0:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(line), signal.SIGKILL)


def _counter(path: Path, key: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0


@dataclass
class NoCgroup:
    """A sandbox without groups."""

    controllers: frozenset[str] = frozenset()

    @property
    def procs_files(self) -> list[str]:
        return []

    def oom_kills(self) -> int:
        return 0

    def destroy(self) -> None:
        return


class NoCgroups:
    """For machines where no group can be made."""

    controllers: frozenset[str] = frozenset()

    def create(self, name: str, limits: Limits, extra_processes: int) -> Cgroup:
        return NoCgroup()

    def names(self) -> set[str]:
        return set()

    def adopt(self, name: str) -> Cgroup:
        return NoCgroup()


@dataclass
class _V1Group:
    folders: dict[str, Path]

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self.folders)

    @controllers.setter
    def controllers(self, value: frozenset[str]) -> None:
        raise AttributeError("controllers")

    @property
    def procs_files(self) -> list[str]:
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def oom_kills(self) -> int:
        if "memory" not in self.folders:
            return 0
        return _counter(self.folders["memory"] / "memory.oom_control", "oom_kill")

    def destroy(self) -> None:
        _destroy(list(self.folders.values()))


class V1Cgroups:
    """Version 1: one tree per controller."""

    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = parents
        self.controllers = frozenset(parents)

    def create(self, name: str, limits: Limits, extra_processes: int) -> Cgroup:
        folders = {}
        for controller, parent in self._parents.items():
            folders[controller] = parent / name
            folders[controller].mkdir(exist_ok=True)
        if "memory" in folders:
            text = str(limits.memory_mb * MIB)
            _write(folders["memory"] / "memory.limit_in_bytes", text)
            with contextlib.suppress(OSError):  # Absent without swap accounting.
                _write(folders["memory"] / "memory.memsw.limit_in_bytes", text)
        if "pids" in folders:
            _write(folders["pids"] / "pids.max", str(limits.max_processes + extra_processes))
        if "cpu" in folders:
            _write(folders["cpu"] / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
            _write(folders["cpu"] / "cpu.cfs_quota_us", str(max(1000, int(limits.cpus * _CPU_PERIOD_US))))
        return _V1Group(folders)

    def names(self) -> set[str]:
        return {
            child.name
            for parent in self._parents.values()
            if parent.is_dir()
            for child in parent.iterdir()
            if child.is_dir()
        }

    def adopt(self, name: str) -> Cgroup:
        return _V1Group({controller: parent / name for controller, parent in self._parents.items()})


@dataclass
class _V2Group:
    folder: Path
    controllers: frozenset[str]

    @property
    def procs_files(self) -> list[str]:
        return [str(self.folder / "cgroup.procs")]

    def oom_kills(self) -> int:
        return _counter(self.folder / "memory.events", "oom_kill")

    def destroy(self) -> None:
        with contextlib.suppress(OSError):
            _write(self.folder / "cgroup.kill", "1")
        _destroy([self.folder])


class V2Cgroups:
    """Version 2: one tree."""

    def __init__(self, parent: Path, controllers: frozenset[str]) -> None:
        self._parent = parent
        self.controllers = controllers

    def create(self, name: str, limits: Limits, extra_processes: int) -> Cgroup:
        folder = self._parent / name
        folder.mkdir(exist_ok=True)
        if "memory" in self.controllers:
            _write(folder / "memory.max", str(limits.memory_mb * MIB))
            with contextlib.suppress(OSError):
                _write(folder / "memory.swap.max", "0")
        if "pids" in self.controllers:
            _write(folder / "pids.max", str(limits.max_processes + extra_processes))
        if "cpu" in self.controllers:
            _write(folder / "cpu.max", f"{max(1000, int(limits.cpus * _CPU_PERIOD_US))} {_CPU_PERIOD_US}")
        return _V2Group(folder, self.controllers)

    def names(self) -> set[str]:
        if not self._parent.is_dir():
            return set()
        return {child.name for child in self._parent.iterdir() if child.is_dir()}

    def adopt(self, name: str) -> Cgroup:
        return _V2Group(self._parent / name, self.controllers)


@dataclass(frozen=True)
class _Mount:
    point: Path
    root: str
    kind: str
    options: frozenset[str]


def _mounts(proc: Path) -> list[_Mount]:
    found = []
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = before.split()
            found.append(_Mount(Path(fields[4]), fields[3], kind, frozenset(options.split(","))))
    return found


def _own_paths(proc: Path) -> dict[str, str]:
    paths = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _own_folder(mount: _Mount, path: str) -> Path:
    relative = path.removeprefix(mount.root.rstrip("/"))
    folder = mount.point / relative.lstrip("/")
    return folder if folder.is_dir() else mount.point


def find_cgroups(instance: str, proc: Path = Path("/proc/self")) -> CgroupParent:
    """The best that works here, below the group that we ourselves are in; instance names our part of it."""
    name = f"longshore-{instance}"
    try:
        mounts, own = _mounts(proc), _own_paths(proc)
    except (OSError, ValueError, IndexError) as error:
        log.warning("cannot read the control groups of this process; limits are advisory", error=str(error))
        return NoCgroups()
    parents = _v1_parents(mounts, own, name)
    if "memory" in parents:
        return V1Cgroups(parents)
    return _v2(mounts, own, name) or (V1Cgroups(parents) if parents else NoCgroups())


def _v1_parents(mounts: list[_Mount], own: dict[str, str], name: str) -> dict[str, Path]:
    parents: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu"):
        for mount in mounts:
            if mount.kind == "cgroup" and controller in mount.options and controller in own:
                folder = _own_folder(mount, own[controller]) / name
                with contextlib.suppress(OSError):
                    folder.mkdir(exist_ok=True)
                    probe = folder / "probe"
                    probe.mkdir(exist_ok=True)
                    probe.rmdir()
                    parents[controller] = folder
    return parents


def _v2(mounts: list[_Mount], own: dict[str, str], name: str) -> V2Cgroups | None:
    for mount in mounts:
        if mount.kind != "cgroup2" or "" not in own:
            continue
        parent = _own_folder(mount, own[""])
        try:
            _enable(parent)
            folder = parent / name
            folder.mkdir(exist_ok=True)
            controllers = _enable(folder)
        except OSError:
            continue
        if "memory" in controllers:
            return V2Cgroups(folder, controllers)
    return None


def _enable(folder: Path) -> frozenset[str]:
    """Passes the controllers that we use on to children; gives those that are."""
    offered = frozenset((folder / "cgroup.controllers").read_text().split())
    enabled = set((folder / "cgroup.subtree_control").read_text().split())
    for controller in ("memory", "pids", "cpu"):
        if controller in offered - enabled:
            # Refused while processes are in the group itself, unless someone has enabled it before.
            with contextlib.suppress(OSError):
                _write(folder / "cgroup.subtree_control", f"+{controller}")
                enabled.add(controller)
    return frozenset(enabled & {"memory", "pids", "cpu"})
