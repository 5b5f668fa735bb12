"""System calls that Python 3.11 has no wrapper for."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_NOSUID = 2
MS_NODEV = 4

# What a container's root is commonly given; nothing here reaches beyond the sandbox's own user namespace.
CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2). Raises OSError."""
    _check(_libc.setns(fd, kind), "setns")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    encoded = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(_libc.mount(*encoded), f"mount {source} on {target}")


def rename_exchange(source: str, target: str) -> None:
    """Swaps two paths in one step (renameat2 with RENAME_EXCHANGE). Raises OSError."""
    _check(_libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), 2), f"exchange {source}")


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def keep_only_capabilities(kept: frozenset[int]) -> None:
    """Drops every other capability from the bounding, permitted, effective and inheritable sets. Raises OSError."""
    for number in range(_LAST_CAPABILITY + 1):
        if number not in kept and _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            break  # Numbers from here on are unknown to this kernel.
    header = _CapHeader(0x20080522, 0)
    data = (_CapData * 2)()
    for number in kept:
        data[number // 32].permitted |= 1 << (number % 32)
        data[number // 32].effective |= 1 << (number % 32)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")
