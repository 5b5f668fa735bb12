"""The same without root: a subset of the suites as an ordinary user, with the limits that still bind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_UID = 54321
_CHOSEN = (
    "exit_code or setsid or fork_bomb or memory_hog or huge_file or network or host_files or same_id or planted or "
    "links_lead or kill_minus_one or tar_replaces or run_user_env or without_cgroups or deleting_leaves"
)


_CHECK = "import subprocess, sys; subprocess.check_call([sys.executable, '-I', '-c', ''])"


def _interpreter() -> str | None:
    """A Python of our version that any user may run."""
    name = f"python3.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")):
        if path and _runs(path):
            return path
    return None


def _runs(path: str) -> bool:
    done = subprocess.run(
        ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", path, "-c", _CHECK], check=False
    )
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
def test_suites_as_an_ordinary_user(tmp_path: Path) -> None:
    python = _interpreter()
    if python is None:
        pytest.skip("no Python of this version that an ordinary user may run")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.name.startswith("pytest"):
            folder.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, _UID, _UID)
    here = Path(__file__).parent
    env = {
        "PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    suites = [str(here / name) for name in ("test_contract_agent.py", "test_images.py", "test_leases.py")]
    command = [
        "setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", "--inh-caps=-all", python, "-m", "pytest",
        "-p", "no:cacheprovider", "-q", "-k", _CHOSEN, *suites,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=here.parents[2], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.count(".") >= 15, done.stdout
