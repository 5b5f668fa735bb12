"""Helpers of the end-to-end tests: real services, vLLM, DeepSpeed and sandboxes, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

LONGSHORE = str(Path(sys.executable).with_name("longshore"))
REPOSITORY = Path(__file__).resolve().parents[2]


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would point a command at another home or server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
    return kept | extra


def start(*argv: str, log: Path, **extra: str) -> subprocess.Popen[bytes]:
    """Starts a command in the repository's folder; its output goes to `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(argv, cwd=REPOSITORY, env=environment(**extra), stdout=file, stderr=file)


def mentions(process: psutil.Process, folder: Path) -> bool:
    """Whether a process was started for this folder: by its arguments, or by what it has open."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        text = str(folder)
        return any(text in word for word in process.cmdline()) or any(text in f.path for f in process.open_files())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def processes_of(folder: Path, leave_out: set[int]) -> list[str]:
    """Processes that still work for this folder."""
    return [
        f"{process.pid} {' '.join(process.cmdline())[:120]}"
        for process in psutil.process_iter()
        if process.pid not in leave_out and mentions(process, folder)
    ]


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for the condition; the bound is generous, it only keeps a fault from hanging the suite."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")
