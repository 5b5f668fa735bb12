"""Inside a forked child: enter a sandbox's namespaces, then become the command (or do one file operation).

The child never imports anything after it has entered: what lies under the sandbox's root is hostile.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from longshore_sandbox_scheduler.runtimes.bubblewrap.launcher import file_ops, syscalls

_OOM_SCORE_OF_COMMANDS = 500
_NAMESPACES = (
    ("user", syscalls.CLONE_NEWUSER),
    ("mnt", syscalls.CLONE_NEWNS),
    ("ipc", syscalls.CLONE_NEWIPC),
    ("uts", syscalls.CLONE_NEWUTS),
    ("net", syscalls.CLONE_NEWNET),
)
_EXEC_FAILED = {FileNotFoundError: 127, NotADirectoryError: 127}


@dataclass
class Namespaces:
    """Open descriptors of a sandbox's namespaces, by their names under /proc/<pid>/ns."""

    fds: dict[str, int]

    @staticmethod
    def open(pid: int) -> Namespaces:
        """Raises OSError when the process is gone."""
        names = [name for name, _ in _NAMESPACES] + ["pid"]
        return Namespaces({name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names})

    def close(self) -> None:
        """Closes all descriptors."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


def _close_all_but(kept: set[int]) -> None:
    previous = -1
    for fd in [*sorted(kept), 1 << 20]:
        if fd > previous + 1:
            os.closerange(previous + 1, fd)
        previous = fd


def _forget_imports() -> None:
    sys.path[:] = []
    sys.meta_path[:] = []
    sys.path_importer_cache.clear()


def _enter(namespaces: Namespaces, cgroup_files: list[str]) -> None:
    for path in cgroup_files:
        with open(path, "w") as file:
            file.write("0")
    for name, kind in _NAMESPACES:
        syscalls.setns(namespaces.fds[name], kind)
    with contextlib.suppress(PermissionError):  # Denied where only one uid is mapped; there are no groups then.
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def run_command(request: dict[str, Any], namespaces: Namespaces, cgroup_files: list[str], fds: list[int]) -> NoReturn:
    """Supervises one command, in the pid namespace that it was forked into. fds: stdin, stdout, stderr, status.

    The supervisor adopts orphans of the command, so that all of the command's processes are its descendants.
    Writes one JSON object to status: {"exit_code", "signal"} or {"error", "message"}.
    """
    status = fds[3]
    try:
        # 0-2 stay open until the command has its own there, so that no new descriptor gets these numbers.
        _close_all_but({0, 1, 2, *fds, *namespaces.fds.values()})
        _forget_imports()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(_OOM_SCORE_OF_COMMANDS))  # The kernel then never picks the sandbox's init first.
        _enter(namespaces, cgroup_files)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        failure_read, failure_write = os.pipe()
        child = os.fork()
        if child == 0:
            _become(request, fds, failure_write)
        _close_all_but({status, failure_read})
        os.write(status, json.dumps(_supervise(child, failure_read)).encode())
    except OSError as error:
        _report(status, "start", f"cannot start the command: {error}")
    os._exit(0)


def _supervise(child: int, failure_read: int) -> dict[str, Any]:
    failure = _read_all(failure_read)
    while True:
        pid, raw = os.waitpid(-1, 0)
        if pid == child:
            break
    if failure:
        answer: dict[str, Any] = json.loads(failure)
        return answer
    code = os.waitstatus_to_exitcode(raw)
    return {"exit_code": code, "signal": 0} if code >= 0 else {"exit_code": -1, "signal": -code}


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def _report(fd: int, error: str, message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps({"error": error, "message": message}).encode())


def _become(request: dict[str, Any], fds: list[int], failure: int) -> NoReturn:
    try:
        _prepare(request, fds)
        _execute(request["argv"], request["env"], failure)
    except _Refused as error:
        _report(failure, error.kind, str(error))
    except OSError as error:
        _report(failure, "start", f"cannot start the command: {error}")
    os._exit(127)


class _Refused(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _prepare(request: dict[str, Any], fds: list[int]) -> None:
    for target in range(3):
        os.dup2(fds[target], target, inheritable=True)
    os.setsid()
    os.umask(0o022)
    for name, value in request["rlimits"].items():
        _limit(name, value)
    uid, gid, home = _account(request["user"], request["uids"])
    request["env"].setdefault("HOME", home)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    kept = frozenset(syscalls.CAPABILITIES.values())
    if uid != 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        syscalls.keep_only_capabilities(kept)
        os.setresuid(uid, uid, uid)
    else:
        syscalls.keep_only_capabilities(kept)
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        raise _Refused("cwd", f"cannot enter {request['cwd']}: {error.strerror}") from error
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _limit(name: str, value: int) -> None:
    which = getattr(resource, name)
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (bound, bound))


def _account(user: str, uids: int) -> tuple[int, int, str]:
    """uid, gid and home of a name or number, from the sandbox's own /etc/passwd."""
    name = user or "0"
    found = None
    with contextlib.suppress(OSError), open("/etc/passwd", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if len(fields) >= 6 and name in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
                found = int(fields[2]), int(fields[3]), fields[5] or "/"
                break
    if found is None and name in ("0", "root"):
        found = 0, 0, "/root"
    if found is None and name.isdigit():
        found = int(name), int(name), "/"
    if found is None:
        raise _Refused("user", f"user {user!r} is not in the image's /etc/passwd")
    if found[0] >= uids or found[1] >= uids:
        raise _Refused(
            "user",
            f"user {user!r} has uid {found[0]}, but only {uids} uid(s) are mapped here; "
            "run the scheduler as root to map a range",
        )
    return found


def _execute(argv: list[str], env: dict[str, str], failure: int) -> NoReturn:
    os.set_inheritable(failure, False)
    program = os.fsencode(argv[0])
    tried: list[bytes] = [program]
    if b"/" not in program:
        folders = [folder for folder in env.get("PATH", "").split(":") if folder]
        tried = [os.path.join(os.fsencode(folder), program) for folder in folders]
    last: OSError = FileNotFoundError(2, "No such file or directory")
    for path in tried:
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            last = error if not isinstance(last, PermissionError) else last
        except OSError as error:
            last = error
            if not isinstance(error, PermissionError):
                break
    os.write(2, f"{argv[0]}: {last.strerror}\n".encode(errors="surrogateescape"))
    os._exit(_EXEC_FAILED.get(type(last), 126))


def run_file_operation(request: dict[str, Any], namespaces: Namespaces, fds: list[int]) -> NoReturn:
    """Does one file operation as the sandbox's root, in its mount namespace but outside its pid namespace.

    fds: status, and the data's descriptor where there is data. Writes one JSON object to status.
    """
    status, data = fds[0], fds[1] if len(fds) > 1 else -1
    try:
        _close_all_but({*fds, *(namespaces.fds.values())})
        _forget_imports()
        for name in ("user", "mnt"):
            syscalls.setns(namespaces.fds[name], dict(_NAMESPACES)[name])
        with contextlib.suppress(PermissionError):
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        _close_all_but(set(fds))
        os.umask(0o022)
        answer = file_ops.perform(request, data)
    except file_ops.Refused as error:
        answer = {"error": error.kind, "message": str(error)}
    except OSError as error:
        answer = {"error": "errno", "errno": error.errno or 0, "message": file_ops.describe(error)}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(answer).encode())
    os._exit(0)


def kill_everything(namespaces: Namespaces, status: int) -> NoReturn:
    """Kills all processes of the pid namespace that this process was forked into, its init excepted."""
    try:
        _close_all_but({status, *namespaces.fds.values()})
        for name in ("user", "mnt"):
            syscalls.setns(namespaces.fds[name], dict(_NAMESPACES)[name])
        os.setresuid(0, 0, 0)
        count = sum(1 for entry in os.listdir("/proc") if entry.isdigit()) - 2
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        answer: dict[str, Any] = {"killed": max(count, 0), "complete": True}
    except OSError as error:
        answer = {"error": "start", "message": f"cannot enter the sandbox: {error}"}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(answer).encode())
    os._exit(0)
