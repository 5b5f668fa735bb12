"""One process per home; addresses are believed only while it lives."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from longshore_cli.errors import CliError, ExitCode
from longshore_cli.local.home import Endpoints, Home

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom longshore_cli.local.home import Endpoints, Home\n"
    "home = Home(Path(sys.argv[1]))\n"
    "with home.locked(), home.announced(Endpoints(1, {'controller': '127.0.0.1:1'})):\n"
    "    print('held', flush=True)\n    time.sleep(60)\n"
)


def test_a_second_process_is_told_the_first_ones_pid(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(home.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert home.endpoints() == Endpoints(1, {"controller": "127.0.0.1:1"})
        with pytest.raises(CliError, match=f"in use by process {holder.pid}") as error, home.locked():
            pass
        assert error.value.code is ExitCode.USAGE
        holder.kill()
        holder.wait()
        # The file is still there after kill -9, and is not believed.
        assert home.endpoints_file.exists()
        assert home.endpoints() is None
        with home.locked():
            assert home.lock_file.read_text() == f"{os.getpid()}\n"
    finally:
        holder.kill()
        holder.wait()


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    first = home.secret()
    assert len(first) >= 32
    assert Home(tmp_path / "h").secret() == first
    assert stat.S_IMODE((tmp_path / "h" / "secret").stat().st_mode) == 0o600


def test_endpoints_go_with_the_block(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    with home.locked():
        with home.announced(Endpoints(7, {"a": "b:1"}, {"c": "d:2"})):
            assert json.loads(home.endpoints_file.read_text())["pid"] == 7
        assert not home.endpoints_file.exists()


def test_looking_makes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    assert home.endpoints() is None
    assert not home.in_use()
    assert not home.path.exists()
