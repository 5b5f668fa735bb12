"""Children cannot outlive us, whatever ends us."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from longshore_common.child import spawn
from longshore_common.errors import Unavailable


def alive(marker: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if marker in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


async def until_gone(marker: str) -> None:
    for _ in range(100):
        if not alive(marker):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still alive: {alive(marker)}")


async def test_exit_status_and_log(tmp_path: Path):
    child = await spawn("job", ["sh", "-c", "echo said; exit 3"], log_path=tmp_path / "job.log")
    assert await child.wait() == 3
    assert child.log_tail() == "said\n"


async def test_output_by_line_is_complete_when_the_child_has_ended():
    lines: list[str] = []
    script = "printf 'one\\r50%%\\rtwo\\n\\n'; echo three >&2; printf last; exit 4"
    child = await spawn("job", ["sh", "-c", script], on_line=lines.append)
    assert await child.wait() == 4
    assert lines == ["one", "50%", "two", "three", "last"]
    assert child.log_tail(2) == "three\nlast\n"


async def test_a_line_without_an_end_is_cut():
    lines: list[str] = []
    child = await spawn("job", ["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"], on_line=lines.append)
    await child.wait()
    assert sum(map(len, lines)) == 300000
    assert len(lines) > 1


async def test_a_signalled_child_is_reported_as_such(tmp_path: Path):
    child = await spawn("job", ["sh", "-c", "kill -9 $$"], log_path=tmp_path / "job.log")
    assert await child.wait() == -signal.SIGKILL


async def test_orphans_in_their_own_session_are_killed_at_the_end(tmp_path: Path):
    marker = f"{300 + os.getpid()}.25"
    child = await spawn("job", ["sh", "-c", f"setsid sleep {marker} & sleep 0.1"], log_path=tmp_path / "log")
    await child.wait()
    await until_gone(marker)


async def test_stop_kills_what_ignores_sigterm(tmp_path: Path):
    marker = f"{300 + os.getpid()}.5"
    child = await spawn(
        "job", ["sh", "-c", f"trap '' TERM; setsid sleep {marker}; sleep {marker}"], log_path=tmp_path / "l"
    )
    while not alive(marker):
        await asyncio.sleep(0.02)
    await child.stop(grace_s=0.2)
    await until_gone(marker)


async def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path):
    marker = f"{300 + os.getpid()}.75"
    code = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from longshore_common.child import spawn\n"
        "async def main():\n"
        f"    argv = ['sh', '-c', 'setsid sleep {marker} & sleep {marker}']\n"
        f"    child = await spawn('job', argv, log_path=Path('{tmp_path}/l'))\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while len(alive(marker)) < 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert len(alive(marker)) >= 2
    parent.kill()
    parent.wait()
    await until_gone(marker)


async def test_a_program_that_does_not_exist_says_so(tmp_path: Path):
    child = await spawn("job", ["/nonexistent/program"], log_path=tmp_path / "l")
    assert await child.wait() == 127
    assert "cannot start /nonexistent/program" in child.log_tail()


async def test_a_missing_folder_to_run_in_is_an_error(tmp_path: Path):
    with pytest.raises(Unavailable, match="cannot start job"):
        await spawn("job", ["true"], cwd=tmp_path / "absent", log_path=tmp_path / "l")
