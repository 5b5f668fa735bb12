"""The checked-in tasks: their oracles are rewarded, doing nothing or half of it is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from longshore_common.bundle import pack_folder
from longshore_task_catalog.domain.inspection import inspect_bundle
from longshore_task_catalog.domain.model import Limits

TASKS = Path(__file__).parents[1] / "tasks"
NAMES = ["follow-references", "order-report", "repair-backup"]
HALF = {
    "follow-references": "sed -n 's/^word: //p' $(sed -n 's/^next: //p' start.txt) > answer.txt",
    "order-report": "awk -F, 'NR > 1 { s[$1] += $2 } END { for (n in s) print n, s[n] }' orders.csv > report.txt",
    "repair-backup": "mkdir -p backup; cp archive/current/*.note backup/",
}


class LocalTask:
    """A task in temporary folders; absolute paths in its scripts are moved below `root`."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root
        shutil.copytree(TASKS / name / "environment/files", root / "app")
        shutil.copytree(TASKS / name / "tests", root / "tests")
        shutil.copytree(TASKS / name / "solution", root / "solution")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                text = path.read_text()
                for place in ("/app", "/tests", "/logs/verifier"):
                    text = text.replace(f"{place}\n", f"{root}{place}\n").replace(f"{place}/", f"{root}{place}/")
                    text = text.replace(f"{place} ", f"{root}{place} ")
                path.write_text(text)

    def run(self, command: str) -> int:
        return subprocess.run(
            ["sh", "-c", command], cwd=self.root / "app", capture_output=True, check=False, timeout=30
        ).returncode

    def reward(self) -> str:
        self.run(f"sh {self.root}/tests/test.sh")
        return (self.root / "logs/verifier/reward.txt").read_text().strip()


def test_these_are_all() -> None:
    assert sorted(path.parent.name for path in TASKS.glob("*/task.toml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_lint_has_nothing_to_say(name: str) -> None:
    inspection = inspect_bundle(pack_folder(TASKS / name), name, Limits())
    assert inspection.findings == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_is_rewarded(name: str, tmp_path: Path) -> None:
    task = LocalTask(name, tmp_path / "t")
    assert task.run(f"sh {task.root}/solution/solve.sh") == 0
    assert task.reward() == "1"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_and_half_of_it_are_not(name: str, tmp_path: Path) -> None:
    assert LocalTask(name, tmp_path / "nop").reward() == "0"
    task = LocalTask(name, tmp_path / "half")
    assert task.run(HALF[name]) == 0
    assert task.reward() == "0"


def test_a_rewritten_backup_script_is_not_rewarded(tmp_path: Path) -> None:
    task = LocalTask("repair-backup", tmp_path / "t")
    task.run("mkdir -p backup; printf 'cp /app/archive/current/*.note /app/backup/\\n' > backup.sh; sh backup.sh")
    assert task.reward() == "0"


def test_the_check_command_tells_one_rule_after_the_other(tmp_path: Path) -> None:
    task = LocalTask("order-report", tmp_path / "t")
    told = []
    for command in (
        "true",
        "cut -d, -f1,2 orders.csv | tail -n +2 > report.txt",
        "cut -d, -f1,2 orders.csv | tail -n +2 | tr , ' ' > report.txt",
        HALF["order-report"],
        "awk -F, '$3 == \"paid\" { s[$1] += $2 } END { for (n in s) print n, s[n] }' orders.csv | sort > report.txt",
    ):
        task.run(command)
        ended = subprocess.run(["sh", "check.sh"], cwd=task.root / "app", capture_output=True, text=True, check=False)
        told.append(ended.stdout.strip())
    assert len(set(told)) == 5, told
    assert "ok" not in told
    task.run(f"sh {task.root}/solution/solve.sh")
    assert task.reward() == "1"
