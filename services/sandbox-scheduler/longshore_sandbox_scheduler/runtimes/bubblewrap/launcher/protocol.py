"""Messages between the scheduler and the launcher: JSON in one datagram each, file descriptors beside them.

A message larger than a datagram travels in a memory file, whose descriptor then comes first.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

_INLINE_BYTES = 48 * 1024
_MAX_FDS = 16

Message = dict[str, Any]


def send(sock: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Sends one message. Raises OSError (BlockingIOError on a non-blocking socket that is full)."""
    data = json.dumps(message).encode()
    passed = list(fds or [])
    if len(data) <= _INLINE_BYTES:
        _send(sock, b"J" + data, passed)
        return
    file = os.memfd_create("longshore-message")
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(data)
        _send(sock, b"M", [file, *passed])
    finally:
        os.close(file)


def _send(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message with its descriptors; None when the other side is gone. Raises BlockingIOError."""
    space = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    data, ancillary, _, _ = sock.recvmsg(_INLINE_BYTES + 16, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
            fds.extend(received)
    if not data:
        return None
    if data[:1] == b"M":
        with os.fdopen(fds.pop(0), "rb") as reader:
            reader.seek(0)
            return json.loads(reader.read()), fds
    return json.loads(data[1:]), fds
