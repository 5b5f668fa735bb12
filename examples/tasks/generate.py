#!/usr/bin/env python3
"""Makes small real Harbor tasks, and demonstrations of them; the same seed gives the same bytes.

    python examples/tasks/generate.py --out DIR --seed 1 [--train 6] [--dev 1] [--test 4]      contents per skill
    python examples/tasks/generate.py demonstrations --out FILE.jsonl --count 1500 --seed 1 --right 0.3

DIR gets one folder per task and splits.json (split -> folder names). A (skill, name, name) combination belongs to one
split for good: what dev and test ask for occurs neither in train nor in the demonstrations, whatever the seed.
Standard library only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

DEFAULT_COUNTS = {"train": 6, "dev": 1, "test": 4}


def _sibling(name: str) -> ModuleType:
    """A module beside this file, so that this one works as a script and when loaded by path."""
    full = f"longshore_example_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


shell_skills = _sibling("shell_skills")
SKILLS = shell_skills.SKILLS

TASK_TOML = """\
schema_version = "1.3"

[task]
name = "longshore-examples/{name}"
description = "{description}"
keywords = ["shell", "{skill}"]

[metadata]
skill = "{skill}"
content = "{content}"
difficulty = "easy"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 256
storage_mb = 64
network_mode = "no-network"

[solution]
"""
DOCKERFILE = "FROM longshore/base\nWORKDIR /app\nCOPY files/ /app/\n"
SOLVE_SH = "#!/bin/sh\ncd /app || exit 1\n{command}\n"
TEST_SH = """\
#!/bin/sh
# Looks at the file system only: how the result came about does not matter.
tests=/tests
logs=/logs/verifier
mkdir -p "$logs"
reward=0
if cd /app && {check}; then
    reward=1
fi
echo "$reward" > "$logs/reward.txt"
"""


@dataclass(frozen=True)
class ExampleTask:
    """One task to be written: its folder name, skill and content."""

    name: str
    skill: str
    split: str
    content: Any
    """A shell_skills.Content."""


def draw(skill: Any, pair: tuple[str, str], rng: random.Random) -> Any:
    """One content of the skill for a pair of names; text skills get a second file that must not be used."""
    content = skill.make(rng, *pair)
    if skill.first is not shell_skills.TEXTS:
        return content
    spare = rng.choice([name for name in shell_skills.TEXTS if name not in content.files])
    return replace(content, files={**content.files, spare: f"{rng.choice(shell_skills.WORDS)}\n"})


def plan(seed: int, counts: dict[str, int]) -> list[ExampleTask]:
    """The tasks of every split: counts[split] contents of each skill.

    Raises:
        ValueError: two tasks would have the same content.
    """
    tasks: list[ExampleTask] = []
    seen: dict[str, str] = {}
    for skill in SKILLS:
        number = 0
        for split, count in counts.items():
            pairs = skill.pairs(split)
            random.Random(f"{seed}/{skill.name}/{split}").shuffle(pairs)
            for index in range(count):
                number += 1
                rng = random.Random(f"{seed}/{skill.name}/{split}/{index}")
                content = draw(skill, pairs[index % len(pairs)], rng)
                task = ExampleTask(f"{skill.name}-{number:03d}", skill.name, split, content)
                if (other := seen.setdefault(task.content.key(), task.name)) != task.name:
                    raise ValueError(f"{task.name} and {other} have the same content; ask for fewer contents per skill")
                tasks.append(task)
    return tasks


def task_files(task: ExampleTask) -> Iterator[tuple[str, str, bool]]:
    """(relative path, text, executable) of a task's files."""
    content = task.content
    toml = TASK_TOML.format(
        name=task.name, skill=task.skill, content=content.key()[:16], description=content.instruction
    )
    yield "task.toml", toml, False
    yield "instruction.md", content.instruction + "\n", False
    yield "environment/Dockerfile", DOCKERFILE, False
    for path, text in content.files.items():
        yield f"environment/files/{path}", text, False
    yield "solution/solve.sh", SOLVE_SH.format(command=content.solution), True
    yield "tests/test.sh", TEST_SH.format(check=content.check), True
    for path, text in content.expected.items():
        yield f"tests/{path}", text, False


def write_tasks(out: Path, seed: int, counts: dict[str, int] | None = None) -> dict[str, list[str]]:
    """Writes all tasks and splits.json into `out`, whole or not at all; returns the splits.

    Raises:
        FileExistsError: `out` holds something else than an earlier result.
    """
    if out.exists() and any(out.iterdir()) and not (out / "splits.json").is_file():
        raise FileExistsError(f"{out} is not empty and has no splits.json; give another --out")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    splits: dict[str, list[str]] = {}
    for task in plan(seed, counts or DEFAULT_COUNTS):
        splits.setdefault(task.split, []).append(task.name)
        for relative, text, executable in task_files(task):
            path = partial / task.name / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, newline="\n")
            path.chmod(0o755 if executable else 0o644)
    (partial / "splits.json").write_text(json.dumps(splits, indent=1) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    os.replace(partial, out)
    return splits


def _tasks_command(arguments: argparse.Namespace) -> str:
    counts = {split: getattr(arguments, split) for split in DEFAULT_COUNTS}
    splits = write_tasks(arguments.out, arguments.seed, counts)
    sizes = ", ".join(f"{len(names)} {split}" for split, names in splits.items())
    return f"{arguments.out}: {sizes} tasks of {len(SKILLS)} skills"


def _demonstrations_command(arguments: argparse.Namespace) -> str:
    demonstrations = _sibling("demonstrations")
    summary = demonstrations.write_demonstrations(
        arguments.out, arguments.count, arguments.seed, arguments.right, arguments.observation_chars, draw, SKILLS
    )
    return f"{arguments.out}: {summary}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Makes small Harbor tasks; the same seed gives the same bytes.")
    parser.add_argument("--out", type=Path, required=True, help="folder; replaced when it is an earlier result")
    parser.add_argument("--seed", type=int, default=1)
    for split, count in DEFAULT_COUNTS.items():
        parser.add_argument(f"--{split}", type=int, default=count, help=f"contents per skill (default {count})")
    parser.set_defaults(run=_tasks_command)
    return parser


def _demonstrations_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="generate.py demonstrations", description="Makes conversations for a warm start."
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file")
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=float, default=0.3, help="probability that a command is right (default 0.3)")
    parser.add_argument("--observation-chars", type=int, default=24, help="characters of output shown after a failure")
    parser.set_defaults(run=_demonstrations_command)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when written, 2 when the arguments do not fit."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == "demonstrations":
        arguments = _demonstrations_parser().parse_args(words[1:])
    else:
        arguments = _parser().parse_args(words)
    try:
        print(arguments.run(arguments))
    except (OSError, ValueError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
