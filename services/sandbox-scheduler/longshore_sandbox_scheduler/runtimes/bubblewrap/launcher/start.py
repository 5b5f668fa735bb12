"""Inside a forked child: make a user namespace with its uid map, then become bubblewrap."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any, NoReturn

from longshore_sandbox_scheduler.runtimes.bubblewrap.launcher import syscalls

_NO_MORE_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"


def become_bubblewrap(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """fds: stdin, stdout and stderr of the holder, descriptor for bubblewrap's --info-fd.

    Exits with 1 and a line on stderr when it cannot.
    """
    try:
        for target in range(3):
            os.dup2(fds[target], target, inheritable=True)
        os.dup2(fds[3], 3, inheritable=True)
        os.set_inheritable(3, True)
        os.closerange(4, 1 << 20)
        os.setsid()
        for path in request["cgroup_files"]:
            with open(path, "w") as file:
                file.write("0")
        _enter_user_namespace(request)
        # Ignored, and so it stays in the holder: the kernel then reaps the orphans that it adopts.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.execve(request["argv"][0], request["argv"], {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        os.write(2, f"cannot start bubblewrap: {error}\n".encode())
    os._exit(1)


def _enter_user_namespace(request: dict[str, Any]) -> None:
    ready_read, ready_write = os.pipe()
    parent = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        os.close(ready_write)
        _write_maps(parent, request, ready_read)
    os.close(ready_read)
    creator = request["creator_uid"]
    if creator >= 0:
        # Processes of the namespace count against its creator, with the creator's limit at this moment.
        os.setgroups([])
        os.setresgid(creator, creator, creator)
        os.setresuid(creator, creator, creator)
        limit = request["max_processes"]
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # Otherwise only the machine's root may write our maps.
    os.write(ready_write, b"u")
    os.close(ready_write)
    _, status = os.waitpid(mapper, 0)
    if status != 0:
        raise OSError(1, "the uid map was refused")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    with open(_NO_MORE_USER_NAMESPACES, "w") as file:
        file.write("0")


def _write_maps(pid: int, request: dict[str, Any], ready: int) -> NoReturn:
    code = 1
    try:
        if os.read(ready, 1) == b"u":
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write(f"0 {request['first_uid']} {request['uids']}\n")
            code = 0
    except OSError as error:
        os.write(2, f"cannot map uids: {error}\n".encode())
    os._exit(code)
