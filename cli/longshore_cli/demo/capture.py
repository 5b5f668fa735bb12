"""Are the trained tokens the sampled tokens? A sample of captured turns against a fresh forward pass of their version.

Reads turns from the trajectory store; the forward pass is the trainer's tool `longshore_trainer.capture_check`, in its
own process. Lineage (a later turn's prompt starts with exactly the tokens of its parent) is checked here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longshore_cli.errors import CliError
from longshore_cli.local.home import Home

TOLERANCE = 1e-4
VERSIONS = 6
ATTEMPTS_PER_VERSION = 4


def pick(items: Sequence[int], count: int) -> list[int]:
    """Up to `count` of the sorted items, evenly, first and last among them."""
    ordered = sorted(set(items))
    if len(ordered) <= count:
        return ordered
    return sorted({ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)})


def lineage_problems(attempt_id: str, turns: Sequence[Any]) -> list[str]:
    """Turns whose prompt does not start with the very ids of their parent's prompt and completion."""
    by_number = {turn.turn: turn for turn in turns}
    problems = []
    for turn in turns:
        parent = by_number.get(turn.parent_turn)
        if parent is None:
            continue
        prefix = [*parent.prompt_ids, *parent.completion_ids]
        if list(turn.prompt_ids[: len(prefix)]) != prefix:
            problems.append(
                f"turn {turn.turn} of {attempt_id} does not extend turn {parent.turn}: tokens were encoded again"
            )
    return problems


def turn_value(attempt_id: str, turn: Any) -> dict[str, Any]:
    """One turn for the trainer's tool."""
    return {
        "attempt_id": attempt_id,
        "turn": turn.turn,
        "version": turn.versions[0].version,
        "prompt_ids": list(turn.prompt_ids),
        "completion_ids": list(turn.completion_ids),
        "logprobs": list(turn.logprobs),
        "temperature": turn.sampling.temperature,
    }


async def _sealed(stub: Any, run_id: str) -> dict[int, list[str]]:
    """Scored attempts by start version, in order of sealing."""
    from longshore.trajectory.v1 import trajectory_pb2

    found: dict[int, list[str]] = {}
    token = ""
    while True:
        request = trajectory_pb2.ListAttemptsRequest(
            run_id=run_id, state=trajectory_pb2.ATTEMPT_STATE_SEALED, page_size=500, page_token=token
        )
        page = await stub.ListAttempts(request)
        for attempt in page.attempts:
            if attempt.outcome.HasField("scored") and attempt.turns:
                found.setdefault(attempt.start_version, []).append(attempt.attempt_id)
        token = page.next_page_token
        if not token:
            return found


async def _sample(stub: Any, run_id: str) -> tuple[list[dict[str, Any]], list[str]]:
    from longshore.trajectory.v1 import trajectory_pb2

    by_version = await _sealed(stub, run_id)
    turns: list[dict[str, Any]] = []
    problems: list[str] = []
    for version in pick(list(by_version), VERSIONS):
        attempts = by_version[version]
        for index in pick(range(len(attempts)), ATTEMPTS_PER_VERSION):
            request = trajectory_pb2.GetAttemptRequest(attempt_id=attempts[index], with_turns=True)
            answer = await stub.GetAttempt(request)
            live = [
                t
                for t in answer.turns
                if t.lease_epoch == answer.attempt.epoch and t.status == trajectory_pb2.TURN_STATUS_OK and t.versions
            ]
            problems += lineage_problems(attempts[index], live)
            turns += [turn_value(attempts[index], turn) for turn in live if turn.completion_ids]
    return turns, problems


def policy_folder(home: Home, run_id: str, version: int) -> Path:
    """Where the trainer wrote a version."""
    return home.path / "checkpoints" / run_id / f"v{version}"


async def check_capture(home: Home, run_id: str, report: dict[str, Any], trajectory: Any) -> dict[str, Any]:
    """The report's `capture_check`.

    Raises:
        CliError: the check itself could not run.
    """
    turns, problems = await _sample(trajectory, run_id)
    if not turns:
        return {"ok": False, "turns": 0, "tokens": 0, "problems": ["no captured turn of a scored attempt was found"]}
    versions = sorted({turn["version"] for turn in turns})
    request = {
        "tolerance": TOLERANCE,
        "model_dir": str(policy_folder(home, run_id, 0)),
        "policies": {str(v): str(policy_folder(home, run_id, v)) for v in versions},
        "turns": turns,
    }
    file = home.path / "capture-check-input.json"
    await asyncio.to_thread(file.write_text, json.dumps(request))
    found = await _run_tool(file, home)
    problems += [str(p) for p in found.pop("problems", [])]
    ok = bool(found.pop("ok", False)) and not problems
    return {"ok": ok, **found, "prompts_extend_parents": not problems, "problems": problems}


async def _run_tool(file: Path, home: Home) -> dict[str, Any]:
    command = [sys.executable, "-m", "longshore_trainer.capture_check", "--input", str(file), "-o", "json"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    try:
        value = json.loads(out)
    except ValueError as error:
        log = home.logs / "capture-check.log"
        await asyncio.to_thread(log.write_bytes, err)
        tail = err.decode(errors="replace").strip().splitlines()
        last = tail[-1] if tail else "no output"
        raise CliError(f"the capture check ended with status {process.returncode}: {last}; see {log}") from error
    if not isinstance(value, dict):
        raise CliError("the capture check answered with no object: it and this command are of different versions")
    return value
