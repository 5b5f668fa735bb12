"""The generated tasks: deterministic, disjoint, and graded rightly for right and wrong commands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longshore_common.digests import tree_digest

SCRIPT = Path(__file__).parents[1] / "tasks" / "generate.py"
CONTENTS_TRIED = 3


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("longshore_example_generate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _load()
SKILL_NAMES = [skill.name for skill in generate.SKILLS]


class LocalTask:
    """A generated task in temporary folders: /app, /tests and /logs/verifier become folders below `root`."""

    def __init__(self, task: Any, root: Path) -> None:
        self.app, self.tests, self.logs = root / "app", root / "tests", root / "logs"
        self.app.mkdir(parents=True)
        for relative, text, executable in generate.task_files(task):
            kind, _, inner = relative.partition("/")
            if relative.startswith("environment/files/"):
                path = self.app / relative.removeprefix("environment/files/")
            elif kind == "tests":
                path = self.tests / inner
            else:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._local(text) if relative == "tests/test.sh" else text)
            path.chmod(0o755 if executable else 0o644)

    def _local(self, script: str) -> str:
        places = {"tests=/tests\n": self.tests, "logs=/logs/verifier\n": self.logs}
        for line, folder in places.items():
            assert line in script
            script = script.replace(line, f"{line.split('=')[0]}={shlex.quote(str(folder))}\n")
        assert "if cd /app &&" in script
        return script.replace("cd /app", f"cd {shlex.quote(str(self.app))}")

    def run(self, command: str) -> None:
        subprocess.run(["sh", "-c", command], cwd=self.app, capture_output=True, check=False, timeout=30)

    def reward(self) -> str:
        subprocess.run(["sh", str(self.tests / "test.sh")], capture_output=True, check=True, timeout=30)
        return (self.logs / "reward.txt").read_text().strip()


def grade(task: Any, command: str | None, root: Path) -> str:
    local = LocalTask(task, root)
    if command is not None:
        local.run(command)
    return local.reward()


def extra_wrong(command: str) -> list[str]:
    """Mistakes that any redirecting command can have: no redirect, another output name, nothing written into it."""
    match = re.fullmatch(r"(.*) > (\S+)", command)
    if match is None:
        return []
    body, output = match.groups()
    return [body, f"{body} > {output.split('.')[0]}", f": > {output}", f"echo > {output}"]


def tasks_of(skill: str, split: str = "test") -> list[Any]:
    counts = {"train": 0, "dev": 0, "test": 0, split: CONTENTS_TRIED}
    return [task for task in generate.plan(7, counts) if task.skill == skill]


@pytest.mark.parametrize("skill", SKILL_NAMES)
def test_right_command_is_rewarded_and_wrong_ones_are_not(skill: str, tmp_path: Path) -> None:
    tasks = tasks_of(skill)
    assert len(tasks) == CONTENTS_TRIED
    for number, task in enumerate(tasks):
        root = tmp_path / str(number)
        content = task.content
        assert grade(task, content.solution, root / "right") == "1", content.solution
        assert grade(task, None, root / "nop") == "0"
        wrong = [*content.wrong, *extra_wrong(content.solution)]
        assert len(set(content.wrong)) == 3
        assert content.solution not in wrong
        for index, command in enumerate(wrong):
            assert grade(task, command, root / f"wrong{index}") == "0", command


@pytest.mark.parametrize("skill", SKILL_NAMES)
def test_right_command_works_after_a_wrong_one_that_failed(skill: str, tmp_path: Path) -> None:
    """A second turn is worth something: what fails with an error destroys nothing."""
    task = tasks_of(skill)[0]
    for index, wrong in enumerate(task.content.wrong):
        local = LocalTask(task, tmp_path / str(index))
        if subprocess.run(["sh", "-c", wrong], cwd=local.app, capture_output=True, check=False).returncode == 0:
            continue
        local.run(task.content.solution)
        assert local.reward() == "1", wrong


def test_there_are_enough_skills_and_test_tasks() -> None:
    assert len(SKILL_NAMES) >= 24
    assert len(set(SKILL_NAMES)) == len(SKILL_NAMES)
    assert generate.DEFAULT_COUNTS["test"] * len(SKILL_NAMES) >= 96


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    counts = {"train": 1, "dev": 1, "test": 1}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        generate.write_tasks(tmp_path / name, seed, counts)
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")
    assert tree_digest(tmp_path / "a") != tree_digest(tmp_path / "c")


def test_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    splits = generate.write_tasks(out, 1)
    assert json.loads((out / "splits.json").read_text()) == splits
    names = [name for split in splits.values() for name in split]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(path.name for path in out.iterdir() if path.is_dir())
    tasks = {task.name: task for task in generate.plan(1, generate.DEFAULT_COUNTS)}
    for split, members in splits.items():
        assert {tasks[name].skill for name in members} == set(SKILL_NAMES), split
        assert len(members) == generate.DEFAULT_COUNTS[split] * len(SKILL_NAMES)
    keys = [task.content.key() for task in tasks.values()]
    assert len(keys) == len(set(keys))


def test_what_test_and_dev_ask_for_is_never_trained_on() -> None:
    for skill in generate.SKILLS:
        train, dev, test = (set(skill.pairs(split)) for split in ("train", "dev", "test"))
        assert len(train) + len(dev) + len(test) == len(train | dev | test), skill.name
        assert len(test) >= generate.DEFAULT_COUNTS["test"]
        assert {name for name, _ in test} <= {name for name, _ in train}, "held-out pairs, not held-out names"
        assert {name for _, name in test} <= {name for _, name in train}


def test_a_folder_with_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert generate.main(["--out", str(tmp_path), "--train", "1", "--dev", "0", "--test", "0"]) == 2
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_script_runs_alone(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-I",
        str(SCRIPT),
        "--out",
        str(tmp_path / "t"),
        "--train",
        "1",
        "--dev",
        "0",
        "--test",
        "0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "25 train" in ended.stdout


def test_demonstrations_are_deterministic_right_in_part_and_not_of_held_out_contents(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.jsonl"
        assert (
            generate.main(["demonstrations", "--out", str(out), "--count", "250", "--seed", "5", "--right", "0.3"]) == 0
        )
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    conversations = [json.loads(line)["messages"] for line in texts[0].splitlines()]
    assert len(conversations) == 250
    held_out = {task.content.instruction for task in generate.plan(1, {"dev": 6, "test": 12})}
    plain = {messages[1]["content"] for messages in conversations}
    assert not plain & held_out


def test_demonstrations_have_the_shape_of_the_bare_protocol(tmp_path: Path) -> None:
    out = tmp_path / "d.jsonl"
    generate.main(["demonstrations", "--out", str(out), "--count", "100", "--right", "0.5"])
    failures = 0
    for line in out.read_text().splitlines():
        messages = json.loads(line)["messages"]
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user", *["assistant", "user"] * ((len(roles) - 3) // 2), "assistant"]
        assert messages[0]["content"] == "Use the shell."
        assert messages[-1]["content"] == "done"
        assert len(roles) in (5, 7)
        first = messages[3]["content"]
        assert re.fullmatch(r"exit 0|exit [1-9]\d*( .{1,24})?", first), first
        assert (len(roles) == 7) == (first != "exit 0")
        failures += first != "exit 0"
    assert failures > 5


@pytest.mark.parametrize(("right", "low", "high"), [("0", 0.0, 0.0), ("1", 1.0, 1.0), ("0.3", 0.2, 0.4)])
def test_share_of_right_first_commands(right: str, low: float, high: float, tmp_path: Path) -> None:
    demonstrations = generate._sibling("demonstrations")
    summary = demonstrations.write_demonstrations(
        tmp_path / "d.jsonl", 200, 2, float(right), 24, generate.draw, generate.SKILLS
    )
    share = int(re.search(r"(\d+)% start", summary)[1]) / 100  # type: ignore[index]
    assert low <= share <= high


def test_observation_is_what_the_shell_gives(tmp_path: Path) -> None:
    demonstrations = generate._sibling("demonstrations")
    (tmp_path / "a.txt").write_text("x\n")
    assert demonstrations.observe("cat a.txt", tmp_path, 24) == "exit 0"
    assert demonstrations.observe("echo out; echo err >&2; exit 3", tmp_path, 24) == "exit 3 err out"
    assert demonstrations.observe("false", tmp_path, 24) == "exit 1"
    assert demonstrations.observe("cat missing", tmp_path, 12) == "exit 1 cat: missing"


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["demonstrations", "--out", str(tmp_path / "d"), "--right", "1.5"]) == 2
    assert "--right" in capsys.readouterr().err
    assert not os.listdir(tmp_path)
