"""The guard process between us and a child; started by `child.spawn`, without site-packages: standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    stack = [os.getpid()]
    while stack:
        for pid in children.get(stack.pop(), ()):
            found.append(pid)
            stack.append(pid)
    return found


def _kill_descendants() -> None:
    # Again until none is left: a process may fork while we read /proc.
    for _ in range(50):
        alive = _descendants()
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


class _Guard:
    def __init__(self, parent: int, argv: list[str]) -> None:
        self._parent = parent
        self._argv = argv
        self._pid = 0
        self._kill_at: float | None = None

    def run(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
        signal.signal(signal.SIGHUP, self._parent_died)
        signal.signal(signal.SIGTERM, self._forward)
        signal.signal(signal.SIGINT, self._forward)
        signal.signal(signal.SIGUSR1, self._kill_now)
        if os.getppid() != self._parent:
            return 1
        self._pid = os.posix_spawnp(
            self._argv[0],
            self._argv,
            os.environ,
            setsigdef=[signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1],
        )
        status = self._wait()
        _kill_descendants()
        return os.waitstatus_to_exitcode(status)

    def _wait(self) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._pid:
                return status

    def _forward(self, signum: int, _frame: object) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signum)

    def _kill_now(self, _signum: int, _frame: object) -> None:
        _kill_descendants()
        os._exit(137)

    def _parent_died(self, _signum: int, _frame: object) -> None:
        # Short grace: engines hold shared memory that they should remove.
        self._forward(signal.SIGTERM, None)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                pid, _ = os.waitpid(self._pid, os.WNOHANG)
                if pid == 0:
                    time.sleep(0.05)
                    continue
            break
        _kill_descendants()
        os._exit(143)


def _main() -> None:
    try:
        code = _Guard(int(sys.argv[1]), sys.argv[2:]).run()
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[2]}: {error}\n")
        code = 127
    if code < 0:
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
