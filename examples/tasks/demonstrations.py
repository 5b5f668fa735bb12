"""Demonstrations for a warm start: short conversations in the shell harness's bare protocol, right part of the time.

Each command really runs, by `sh` in a temporary folder that holds the content's files, so the observation is what a
shell gives: `exit 0`, or the exit status and the first characters of stderr, then stdout, on one line. Contents come
from train's name pairs only.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SYSTEM_PROMPT = "Use the shell."
COMMAND_TIMEOUT_S = 30


def observe(command: str, folder: Path, chars: int) -> str:
    """Runs the command in the folder and renders the observation as the bare protocol does."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HOME": str(folder)}
    ended = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    if ended.returncode == 0:
        return "exit 0"
    output = (ended.stderr + ended.stdout).decode(errors="replace")
    shown = " ".join(output.split("\n")).strip()[:chars].rstrip()
    return f"exit {ended.returncode} {shown}".rstrip()


def write_files(files: dict[str, str], folder: Path) -> None:
    """Writes a content's files as the image has them."""
    for relative, text in files.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="\n")


def _command(content: Any, rng: random.Random, right: float) -> str:
    command: str = content.solution if rng.random() < right else rng.choice(content.wrong)
    return command


def converse(content: Any, rng: random.Random, right: float, chars: int) -> list[dict[str, str]]:
    """One conversation: a command, what it gave, one more command when it failed, `done`."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": content.instruction}]
    with tempfile.TemporaryDirectory(prefix="longshore-demonstration-") as name:
        folder = Path(name)
        write_files(content.files, folder)
        for _turn in range(2):
            command = _command(content, rng, right)
            observation = observe(command, folder, chars)
            messages += [{"role": "assistant", "content": command}, {"role": "user", "content": observation}]
            if observation == "exit 0":
                break
    return [*messages, {"role": "assistant", "content": "done"}]


def write_demonstrations(
    out: Path,
    count: int,
    seed: int,
    right: float,
    chars: int,
    draw: Callable[[Any, tuple[str, str], random.Random], Any],
    skills: Sequence[Any],
) -> str:
    """Writes `count` conversations as JSON lines, whole or not at all; returns a summary line.

    Raises:
        ValueError: `right` is no probability, or `count` is negative.
    """
    if not 0 <= right <= 1 or count < 0:
        raise ValueError(f"--right must be in 0..1 and --count >= 0, not {right} and {count}")

    def one(index: int) -> tuple[bool, list[dict[str, str]]]:
        rng = random.Random(f"{seed}/demonstrations/{index}")
        skill = skills[index % len(skills)]
        content = draw(skill, rng.choice(skill.pairs("train")), rng)
        messages = converse(content, rng, right, chars)
        return messages[2]["content"] == content.solution, messages

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        made = list(pool.map(one, range(count)))
    random.Random(f"{seed}/order").shuffle(made)
    lines = "".join(json.dumps({"messages": messages}, ensure_ascii=False) + "\n" for _, messages in made)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(lines)
    os.replace(partial, out)
    share = sum(first for first, _ in made) / max(count, 1)
    return f"{count} demonstrations of {len(skills)} skills, {share:.0%} start with the right command"
