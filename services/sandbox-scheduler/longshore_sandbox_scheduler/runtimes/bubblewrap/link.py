"""The scheduler's end of the launcher process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import longshore_sandbox_scheduler
from longshore_common.errors import Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.runtimes.bubblewrap.launcher import protocol

log = get_logger(__name__)

_MODULE = "longshore_sandbox_scheduler.runtimes.bubblewrap.launcher.main"
_CODE = (
    f"import sys; sys.path.insert(0, sys.argv[1]); from {_MODULE} import run; "
    "run(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == '1', sys.argv[5], sys.argv[6])"
)
_START_TIMEOUT_S = 20.0


def stage_folder() -> str:
    """Where the launcher mounts its folders, in its own mount namespace only: some folder that every machine has."""
    return next(folder for folder in ("/mnt", "/media", "/srv", "/tmp") if os.path.isdir(folder))


class LauncherLink:
    """Starts the launcher and talks to it. One per runtime; all calls come from one event loop."""

    def __init__(self, on_sandbox_ended: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        self._on_sandbox_ended = on_sandbox_ended
        self._on_lost = on_lost
        self._sock: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._started: asyncio.Future[str] | None = None

    @property
    def alive(self) -> bool:
        """Whether the launcher can be talked to."""
        return self._sock is not None

    async def start(self, folders: Mapping[str, Path], privileged: bool) -> None:
        """Starts it with these folders staged by name; privileged: without a user namespace of its own.

        Must be called from a thread that lives as long as the service: the launcher dies with it.

        Raises:
            Unavailable: this machine does not allow the namespaces that are needed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        root = str(Path(longshore_sandbox_scheduler.__file__).parent.parent)
        names = json.dumps({name: str(path) for name, path in folders.items()})
        arguments = [root, str(theirs.fileno()), str(os.getpid()), "1" if privileged else "0", names, stage_folder()]
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _CODE, *arguments,
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, env={},
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise Unavailable(f"cannot start the sandbox launcher: {error}", retryable=False) from error
        finally:
            theirs.close()
        self._sock = ours
        loop = asyncio.get_running_loop()
        self._started = loop.create_future()
        loop.add_reader(ours.fileno(), self._receive)
        await self._wait_started(self._started)

    async def _wait_started(self, started: asyncio.Future[str]) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                problem = await started
        except TimeoutError:
            problem = f"it did not start within {_START_TIMEOUT_S:.0f} s"
        if problem:
            await self.stop()
            raise Unavailable(
                f"the bubblewrap runtime cannot work on this machine: {problem}; it needs user, mount and pid "
                "namespaces (check kernel.unprivileged_userns_clone, AppArmor and the container's seccomp profile)",
                retryable=False,
            )

    async def request(self, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Sends one request and waits for its answer.

        Raises:
            Unavailable: the launcher or the sandbox is gone, or the operation failed there.
        """
        self._next += 1
        number = self._next
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            await self._send({**message, "id": number}, list(fds))
            answer = await reply
        finally:
            self._replies.pop(number, None)
        if "error" in answer:
            raise Unavailable(str(answer["error"]), retryable=not answer.get("gone", False))
        return answer

    async def notify(self, message: dict[str, Any]) -> None:
        """Sends a request that has no answer. Raises Unavailable."""
        await self._send({**message, "id": 0}, [])

    async def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        while True:
            if self._sock is None:
                raise Unavailable("the sandbox launcher has ended")
            try:
                protocol.send(self._sock, message, fds)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    await asyncio.sleep(0.001)
                    continue
                raise Unavailable(f"the sandbox launcher cannot be reached: {error}") from error

    def _receive(self) -> None:
        while self._sock is not None:
            try:
                received = protocol.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self._lost()
                return
            self._dispatch(received[0])

    def _dispatch(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "ended":
            self._on_sandbox_ended(message["sandbox"])
        elif event in ("started", "failed"):
            if self._started is not None and not self._started.done():
                self._started.set_result(message.get("error", ""))
        else:
            reply = self._replies.get(message["id"])
            if reply is not None and not reply.done():
                reply.set_result(message)

    def _lost(self) -> None:
        self._close_socket()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_result({"error": "the sandbox launcher has ended", "gone": True})
        if self._started is not None and not self._started.done():
            self._started.set_result("the launcher ended at once; its stderr says why")
        self._on_lost()

    def _close_socket(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    async def stop(self) -> None:
        """Ends the launcher, and with it every sandbox."""
        self._close_socket()
        if self._process is not None:
            try:
                async with asyncio.timeout(5.0):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            self._process = None
