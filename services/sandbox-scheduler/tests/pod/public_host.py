"""A host with a public address on the machine that runs the cluster's node: the internet, as far as a pod can tell."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator

PUBLIC_ADDRESS = "9.9.9.9"
PORT = 8443
_NEAR = "203.0.113.1"
_SERVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    listener.accept()[0].close()
"""


@contextlib.contextmanager
def public_host() -> Iterator[str]:
    """host:port that accepts connections, in a network namespace of its own behind a route of this machine."""
    tag = secrets.token_hex(3)
    space, near, far = f"internet-{tag}", f"near{tag}", f"far{tag}"
    _run("ip", "netns", "add", space)
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        _run("ip", "addr", "add", f"{_NEAR}/32", "dev", near)
        _run("ip", "link", "set", near, "up")
        _run("ip", "route", "add", f"{PUBLIC_ADDRESS}/32", "dev", near)
        inside = ("ip", "netns", "exec", space)
        _run(*inside, "ip", "addr", "add", f"{PUBLIC_ADDRESS}/32", "dev", far)
        _run(*inside, "ip", "link", "set", far, "up")
        _run(*inside, "ip", "route", "add", "default", "dev", far)
        with _serving((*inside, sys.executable, "-c", _SERVE, PUBLIC_ADDRESS, str(PORT))):
            yield f"{PUBLIC_ADDRESS}:{PORT}"
    finally:
        _run("ip", "netns", "del", space)


@contextlib.contextmanager
def _serving(command: tuple[str, ...]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield
    finally:
        process.kill()
        process.wait()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)
