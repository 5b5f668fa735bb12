"""The launcher: one single-threaded process that starts sandboxes and forks commands into them.

It is the parent of every sandbox process. When the scheduler dies, the launcher dies (the kernel's parent-death signal,
and end of file on its socket); when the launcher dies, every bubblewrap and every sandbox's init dies (bubblewrap's
--die-with-parent, and end of file on init's stdin), and with an init its whole process tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from longshore_sandbox_scheduler.runtimes.bubblewrap.launcher import enter, process_tree, protocol, start, syscalls


@dataclass
class _Held:
    """A sandbox from the launcher's view."""

    sandbox: str
    monitor: int
    """Process id of bubblewrap outside."""
    request_id: int
    hold_write: int
    """Init reads its other end; closing it ends the sandbox."""
    ready_read: int
    error_read: int
    info_read: int
    cgroup_files: list[str]
    info: bytes = b""
    init: int = 0
    init_fd: int = -1
    namespaces: enter.Namespaces | None = None
    helpers: set[int] = field(default_factory=set)
    """File operations in progress; they live outside the pid namespace."""


class Launcher:
    """Serves requests from one socket until its other end closes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._held: dict[str, _Held] = {}
        self._monitors: dict[int, _Held] = {}
        self._poll = select.poll()
        self._on_readable: dict[int, Callable[[], None]] = {}
        self._child_read, child_write = os.pipe()
        os.set_blocking(child_write, False)
        os.set_blocking(self._child_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(child_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Returns when the scheduler is gone."""
        self._poll.register(self._sock.fileno(), select.POLLIN)
        self._poll.register(self._child_read, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._sock.fileno():
                    received = protocol.receive(self._sock)
                    if received is None:
                        return
                    self._handle(*received)
                elif fd == self._child_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._child_read, 4096)
                    self._reap()
                elif fd in self._on_readable:
                    self._on_readable[fd]()

    def _handle(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            operation = request["op"]
            if operation == "start":
                self._start(request)
            elif operation == "stop":
                self._stop(request["sandbox"])
            elif operation == "signal":
                self._signal(request["pid"], request["signal"])
            else:
                self._fork_into(request, fds)
        except OSError as error:
            self._send({"id": request["id"], "error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            protocol.send(self._sock, message)

    def _start(self, request: dict[str, Any]) -> None:
        hold_read, hold_write = os.pipe()
        ready_read, ready_write = os.pipe()
        error_read, error_write = os.pipe()
        info_read, info_write = os.pipe()
        child_ends = [hold_read, ready_write, error_write, info_write]
        try:
            pid = os.fork()
            if pid == 0:
                _forget_signals()
                start.become_bubblewrap(request, child_ends)
        finally:
            for fd in child_ends:
                os.close(fd)
        os.write(hold_write, b"r")
        cgroup_files = request["cgroup_files"]
        held = _Held(
            request["sandbox"], pid, request["id"], hold_write, ready_read, error_read, info_read, cgroup_files
        )
        self._held[held.sandbox] = held
        self._monitors[pid] = held
        self._watch(ready_read, lambda: self._ready(held))
        self._watch(info_read, lambda: self._info(held))

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._on_readable[fd] = action
        self._poll.register(fd, select.POLLIN | select.POLLHUP)

    def _unwatch(self, fd: int) -> bool:
        if self._on_readable.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    def _info(self, held: _Held) -> None:
        """Bubblewrap says which process becomes init; from now on its end is noticed."""
        data = os.read(held.info_read, 65536)
        held.info += data
        with contextlib.suppress(ValueError, KeyError):  # It may come in pieces.
            held.init = int(json.loads(held.info)["child-pid"])
            self._watch_init(held)
        if held.init or not data:
            self._unwatch(held.info_read)

    def _ready(self, held: _Held) -> None:
        self._unwatch(held.ready_read)
        if held.info_read in self._on_readable:
            self._info(held)
        if os.read(held.ready_read, 1) == b"r":
            try:
                held.namespaces = enter.Namespaces.open(held.init)
            except OSError as error:
                self._fail(held, f"its init process ended at once: {error}")
                return
            self._send({"id": held.request_id, "init": held.init, "monitor": held.monitor})
        else:
            os.set_blocking(held.error_read, False)
            message = b""
            with contextlib.suppress(BlockingIOError):
                message = os.read(held.error_read, 65536)
            self._fail(held, message.decode(errors="replace").strip() or "bubblewrap ended without a message")

    def _watch_init(self, held: _Held) -> None:
        try:
            held.init_fd = os.pidfd_open(held.init)
        except ProcessLookupError:
            self._kill_monitor(held)
            return
        self._watch(held.init_fd, lambda: self._init_ended(held))

    def _kill_monitor(self, held: _Held) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(held.monitor, signal.SIGKILL)

    def _init_ended(self, held: _Held) -> None:
        # Init's whole pid namespace is empty by now. Bubblewrap cannot notice: SIGCHLD is ignored there.
        self._unwatch(held.init_fd)
        os.close(held.init_fd)
        held.init_fd = -1
        self._kill_monitor(held)

    def _fail(self, held: _Held, message: str) -> None:
        self._send({"id": held.request_id, "error": message})
        self._stop(held.sandbox)

    def _stop(self, sandbox: str) -> None:
        held = self._held.get(sandbox)
        if held is None:
            self._send({"event": "ended", "sandbox": sandbox})
            return
        for pid in held.helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if held.init_fd < 0:
            self._kill_monitor(held)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(held.init_fd, signal.SIGKILL)

    def _signal(self, pid: int, signum: int) -> None:
        # pid is a supervisor; the command is its first child.
        for child in process_tree.children(pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signum)

    def _fork_into(self, request: dict[str, Any], fds: list[int]) -> None:
        held = self._held.get(request["sandbox"])
        if held is None or held.namespaces is None:
            self._send({"id": request["id"], "gone": True, "error": "the sandbox has ended"})
            return
        operation = request["op"]
        in_pid_namespace = operation in ("exec", "kill_all")
        if in_pid_namespace:
            syscalls.setns(held.namespaces.fds["pid"], syscalls.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                self._in_child(request, held, fds)
        finally:
            if in_pid_namespace:
                syscalls.setns(self._own_pid_namespace, syscalls.CLONE_NEWPID)
        if operation == "file":
            held.helpers.add(pid)
        self._send({"id": request["id"], "pid": pid})

    def _in_child(self, request: dict[str, Any], held: _Held, fds: list[int]) -> NoReturn:
        _forget_signals()
        namespaces = held.namespaces
        assert namespaces is not None
        operation = request["op"]
        if operation == "exec":
            enter.run_command(request, namespaces, held.cgroup_files, fds)
        elif operation == "file":
            enter.run_file_operation(request, namespaces, fds)
        elif operation == "kill_all":
            enter.kill_everything(namespaces, fds[0])
        elif operation == "memory":
            resident = process_tree.resident_bytes(held.init)
            os.write(fds[0], json.dumps({"bytes": resident}).encode())
        elif operation == "kill_tree":
            killed, complete = process_tree.kill_tree(request["pid"])
            os.write(fds[0], json.dumps({"killed": killed, "complete": complete}).encode())
        os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            held = self._monitors.pop(pid, None)
            if held is not None:
                self._ended(held, status)
            for other in self._held.values():
                other.helpers.discard(pid)

    def _ended(self, held: _Held, status: int) -> None:
        if held.ready_read in self._on_readable:
            self._ready(held)
        self._unwatch(held.info_read)
        if held.init_fd >= 0:
            self._init_ended(held)
        del self._held[held.sandbox]
        for fd in (held.hold_write, held.ready_read, held.error_read, held.info_read):
            os.close(fd)
        if held.namespaces is not None:
            held.namespaces.close()
        self._send({"event": "ended", "sandbox": held.sandbox, "status": os.waitstatus_to_exitcode(status)})


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _own_namespaces(privileged: bool) -> None:
    """New mount and pid namespaces (the latter begins with the next fork), as their root."""
    if privileged:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        return
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _stage(folders: dict[str, str], stage: str) -> None:
    """Puts the folders that sandboxes are made of under one root that any uid may pass."""
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    sources = {name: os.open(path, os.O_PATH) for name, path in folders.items()}
    syscalls.mount("tmpfs", stage, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=1m")
    for name, fd in sources.items():
        target = os.path.join(stage, name)
        os.makedirs(target)
        syscalls.mount(f"/proc/self/fd/{fd}", target, "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(fd)


def _wait_for(child: int) -> None:
    """The outer process: only keeps the launcher's parent alive, and notices its end."""
    os.closerange(3, 1 << 20)
    while True:
        try:
            if os.waitpid(child, 0)[0] == child:
                return
        except InterruptedError:
            continue


def _hide_command_line() -> None:
    # Supervisors are visible to `ps` in the sandbox; paths of the host must not be.
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if begin and end > begin:
        ctypes.memset(begin, 0, end - begin)
        title = b"longshore-supervisor"[: end - begin - 1]
        ctypes.memmove(begin, title, len(title))


def run(socket_fd: int, parent: int, privileged: bool, folders_json: str, stage: str) -> None:
    """Entry of the process. Ends when the scheduler does; sends one {"event": "started"} or {"event": "failed"} first.

    The launcher proper is init of its own pid namespace: whatever ends it, the kernel then kills all that it started.
    """
    sock = socket.socket(fileno=socket_fd)
    try:
        _hide_command_line()
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _own_namespaces(privileged)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        _die_with_parent()
        if os.getppid() != parent:
            return
        child = os.fork()
        if child != 0:
            _wait_for(child)
            return
        _die_with_parent()
        _stage(json.loads(folders_json), stage)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV)
        launcher = Launcher(sock)
    except OSError as error:
        protocol.send(sock, {"event": "failed", "error": str(error)})
        return
    protocol.send(sock, {"event": "started"})
    launcher.serve()


def _die_with_parent() -> None:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
