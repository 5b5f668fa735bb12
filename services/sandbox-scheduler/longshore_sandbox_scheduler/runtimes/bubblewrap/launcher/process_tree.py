"""Killing every descendant of a process, also those that left its session or process group."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_ROUNDS = 200


def _parents() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            # A leader that ended while other threads live looks like a zombie, with more than one thread.
            if fields[0] not in (b"Z", b"X") or int(fields[17]) > 1:
                below.setdefault(int(fields[1]), []).append(int(entry))
    return below


def descendants(root: int) -> list[int]:
    """Live processes below root, root excluded."""
    by_parent = _parents()
    found: list[int] = []
    stack = [root]
    while stack:
        below = by_parent.get(stack.pop(), [])
        found.extend(below)
        stack.extend(below)
    return found


def children(pid: int) -> list[int]:
    """Live children of a process, oldest first."""
    return sorted(_parents().get(pid, []))


def kill_tree(root: int) -> tuple[int, bool]:
    """Kills all descendants of root, which must be a subreaper. Gives how many, and whether none is left.

    Stops root meanwhile, so that orphans stay below it, and each process before the kill: a stopped one cannot fork.
    """
    killed: set[int] = set()
    _signal(root, signal.SIGSTOP)
    try:
        for _ in range(_ROUNDS):
            alive = descendants(root)
            if not alive:
                return len(killed), True
            _kill(alive)
            killed.update(alive)
            time.sleep(0.001)
        return len(killed), False
    finally:
        _signal(root, signal.SIGCONT)


def _kill(alive: list[int]) -> None:
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in alive:
            _signal(pid, signum)


def _signal(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def resident_bytes(init: int) -> int:
    """Memory of all processes in init's pid namespace that no other process or file shares."""
    wanted = os.readlink(f"/proc/{init}/ns/pid")
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == wanted:
                    with open(f"/proc/{entry}/statm", "rb") as file:
                        resident, shared = file.read().split()[1:3]
                        total += (int(resident) - int(shared)) * page
    return total
