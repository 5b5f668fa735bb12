"""`longshore task` and dry runs against the real catalog and controller, started for a moment in this process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

SPEC = """\
name: demo-grpo
model: {path: model}
tasks: {dataset: tiny, unready: exclude}
harness: {name: shell, version: "1", config: {protocol: bare}}
rollout: {group_size: 2, groups_per_step: 1}
algorithm: {preset: grpo, steps: 1}
"""


def write_task(folder: Path, word: str, skill: str = "echo") -> Path:
    """A small Harbor task."""
    files = {
        "task.toml": f'schema_version = "1.3"\n[task]\nname = "local/{folder.name}"\n[metadata]\nskill = "{skill}"\n'
        "[environment]\nmemory_mb = 256\nstorage_mb = 64\n",
        "instruction.md": f"Write {word} into answer.txt\n",
        "environment/Dockerfile": "FROM longshore/base\nWORKDIR /app\n",
        "tests/test.sh": "#!/bin/sh\nr=0\n"
        f'[ "$(cat /app/answer.txt)" = {word} ] && r=1\necho $r > /logs/verifier/reward.txt\n',
        "solution/solve.sh": f"#!/bin/sh\necho {word} > /app/answer.txt\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for word in ("ant", "bee", "cat"):
        write_task(tmp_path / "tasks" / word, word)
    return tmp_path / "tasks"


def _tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_import_list_inspect_freeze(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    first = cli("task", "import", str(tasks), "--home", "h", "-o", "json")
    assert first.exit_code == 0, first.output
    assert [answer["created"] for answer in json.loads(first.stdout)] == [True] * 3
    again = cli("task", "import", str(tasks), "--home", "h")
    assert "3 tasks: 0 new, 3 known" in again.stderr

    listed = json.loads(cli("task", "list", "--home", "h", "-o", "json").stdout)
    assert {task["name"] for task in listed} == {"local/ant", "local/bee", "local/cat"}
    assert {task["state"] for task in listed} == {"needs_probe"}
    inspected = json.loads(cli("task", "inspect", "local/ant", "--home", "h", "-o", "json").stdout)
    assert inspected["metadata"]["skill"] == "echo"

    (tmp_path / "splits.yaml").write_text("train: [ant, local/bee]\ntest: [cat]\n")
    frozen = cli("task", "freeze", "tiny", "--splits", "splits.yaml", "--home", "h", "-o", "json")
    assert frozen.exit_code == 0, frozen.output
    sizes = {split["name"]: len(split["task_digests"]) for split in json.loads(frozen.stdout)["dataset"]["splits"]}
    assert sizes == {"train": 2, "test": 1}
    (tmp_path / "splits.yaml").write_text("train: [ant]\ntest: [cat]\n")
    changed = cli("task", "freeze", "tiny", "--splits", "splits.yaml", "--home", "h")
    assert changed.exit_code == 2, "a frozen name never changes its content"
    (tmp_path / "splits.yaml").write_text("train: [dog]\n")
    unknown = cli("task", "freeze", "other", "--splits", "splits.yaml", "--home", "h")
    assert unknown.exit_code == 2
    assert "no task dog" in unknown.stderr


def test_lint_stores_nothing_and_ends_with_1_on_errors(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    assert cli("task", "lint", str(tasks)).exit_code == 0
    (tasks / "ant" / "tests" / "test.sh").unlink()
    (tasks / "bee" / "task.toml").write_text("[task\n")
    before = _tree(tmp_path)
    result = cli("task", "lint", str(tasks), "-o", "json")
    assert result.exit_code == 1, result.output
    errors = [(f["task"], f["where"]) for f in json.loads(result.stdout) if f["severity"] == "error"]
    assert {task for task, _ in errors} == {"ant", "bee"}
    assert _tree(tmp_path) == before
    assert "Traceback" not in result.output


def test_importing_a_broken_task_is_one_clear_error(cli: Cli, tasks: Path) -> None:
    (tasks / "bee" / "task.toml").write_text("[task\n")
    result = cli("task", "import", str(tasks / "bee"), "--home", "h")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "task.toml" in result.stderr


def test_split_is_repeatable_and_disjoint(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    cli("task", "import", str(tasks), "--home", "h")
    for name in ("a.json", "b.json"):
        assert (
            cli(
                "task", "split", "--out", name, "--train", "0.67", "--test", "0.3", "--dev", "0.01", "--home", "h"
            ).exit_code
            == 0
        )
    splits = json.loads((tmp_path / "a.json").read_text())
    assert splits == json.loads((tmp_path / "b.json").read_text())
    assert len(splits["train"]) + len(splits["test"]) == 3
    assert not set(splits["train"]) & set(splits["test"])


def test_a_dry_run_changes_nothing_and_names_what_is_missing(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    cli("task", "import", str(tasks), "--home", "h")
    (tmp_path / "splits.yaml").write_text("train: [ant, bee]\ntest: [cat]\n")
    assert cli("task", "freeze", "tiny", "--splits", "splits.yaml", "--home", "h").exit_code == 0
    (tmp_path / "spec.yaml").write_text(SPEC.replace("unready: exclude", "unready: refuse"))
    before = _tree(tmp_path)
    result = cli("run", "submit", "spec.yaml", "--dry-run", "-o", "json", "--home", "h")
    assert result.exit_code == 2
    assert "not evaluable" in result.stderr
    (tmp_path / "spec.yaml").write_text(SPEC.replace("preset: grpo", "preset: gppo"))
    unknown = cli("run", "submit", "spec.yaml", "--dry-run", "--home", "h")
    assert unknown.exit_code == 2
    assert "did you mean 'grpo'" in unknown.stderr
    (tmp_path / "spec.yaml").write_text(SPEC.replace("unready: exclude", "unready: refuse"))
    assert _tree(tmp_path) == before


def test_submitting_needs_running_services(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    cli("task", "import", str(tasks), "--home", "h")
    (tmp_path / "spec.yaml").write_text(SPEC)
    result = cli("run", "submit", "spec.yaml", "--home", "h")
    assert result.exit_code == 2
    assert f"longshore up --home {tmp_path / 'h'}" in result.stderr


def test_probe_wants_to_know_which(cli: Cli) -> None:
    assert cli("task", "probe").exit_code == 2
    assert cli("task", "probe", "a", "--all").exit_code == 2
