"""Are the trained tokens the sampled tokens? A sample of captured turns against a fresh forward pass of their version.

Reads turns from the trajectory store; the forward pass is the trainer's tool `longshore_trainer.capture_check`, in its
own process. Lineage (a later turn's prompt starts with exactly the tokens of its parent) is checked here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
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


def turn_value(attempt_id: str, turn: Any, folders: Mapping[int, str]) -> dict[str, Any]:
    """One turn for the trainer's tool; the ids beside it are for people."""
    version = turn.versions[0].version
    return {
        "attempt_id": attempt_id,
        "turn": turn.turn,
        "version": version,
        "prompt_ids": list(turn.prompt_ids),
        "completion_ids": list(turn.completion_ids),
        "logprobs": list(turn.logprobs),
        "temperature": turn.sampling.temperature,
        # Version 0 is the base itself.
        "adapter_dir": folders[version] if version else None,
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


async def _sample(
    stub: Any, run_id: str, folders: Mapping[int, str], versions: int, per_version: int
) -> tuple[list[dict[str, Any]], list[str]]:
    from longshore.trajectory.v1 import trajectory_pb2

    by_version = await _sealed(stub, run_id)
    turns: list[dict[str, Any]] = []
    problems: list[str] = []
    for version in pick(list(by_version), versions):
        attempts = by_version[version]
        for index in pick(range(len(attempts)), per_version):
            request = trajectory_pb2.GetAttemptRequest(attempt_id=attempts[index], with_turns=True)
            answer = await stub.GetAttempt(request)
            live = [
                t
                for t in answer.turns
                if t.lease_epoch == answer.attempt.epoch and t.status == trajectory_pb2.TURN_STATUS_OK and t.versions
            ]
            problems += lineage_problems(attempts[index], live)
            turns += [turn_value(attempts[index], turn, folders) for turn in live if turn.completion_ids]
    return turns, problems


async def policy_folders(gateway: Any, alias: str) -> dict[int, str]:
    """Where the weights of each published version are."""
    from longshore.gateway.v1 import gateway_pb2

    found = (await gateway.ListPolicies(gateway_pb2.ListPoliciesRequest(alias=alias))).policies
    return {policy.version: policy.uri for policy in found}


async def check_capture(home: Home, run_id: str, alias: str, trajectory: Any, gateway: Any) -> dict[str, Any]:
    """The report's `capture_check`.

    Raises:
        CliError: the check itself could not run.
    """
    folders = await policy_folders(gateway, alias)
    return await compare_captured(home, run_id, folders, trajectory)


async def compare_captured(
    home: Home,
    run_id: str,
    folders: Mapping[int, str],
    trajectory: Any,
    versions: int = VERSIONS,
    per_version: int = ATTEMPTS_PER_VERSION,
) -> dict[str, Any]:
    """Compares the turns of up to per_version attempts of up to `versions` versions. folders: weights by version."""
    turns, problems = await _sample(trajectory, run_id, folders, versions, per_version)
    if not turns:
        return {"ok": False, "turns": 0, "tokens": 0, "problems": ["no captured turn of a scored attempt was found"]}
    results = [
        await _compare(home, folders[0], temperature, [t for t in turns if t["temperature"] == temperature])
        for temperature in sorted({turn["temperature"] for turn in turns})
    ]
    # The tool names a version by its folder, and the base by a word of its own.
    version_of = {Path(folder).name: version for version, folder in folders.items()} | {"base": 0}
    return merge(results, version_of, problems)


async def _compare(home: Home, base: str, temperature: float, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs the trainer's tool; it takes one temperature at a time."""
    request = {"model_dir": base, "temperature": temperature, "turns": turns}
    file = home.path / "capture-check-input.json"
    await asyncio.to_thread(file.write_text, json.dumps(request))
    return await _run_tool(file, home)


def merge(results: Sequence[dict[str, Any]], version_of: Mapping[str, int], problems: Sequence[str]) -> dict[str, Any]:
    """The tool's answers, one per temperature, as one result; `ok` wants all of them and no lineage problem."""
    by_version: dict[int, dict[str, Any]] = {}
    for result in results:
        for name, found in result["versions"].items():
            version = version_of[name]
            row = by_version.setdefault(version, {"version": version, "turns": 0, "tokens": 0, "max_abs_diff": 0.0})
            row["turns"] += found["turns"]
            row["tokens"] += found["tokens"]
            row["max_abs_diff"] = max(row["max_abs_diff"], found["max_abs_difference"])
    rows = [by_version[version] for version in sorted(by_version)]
    return {
        "ok": bool(results) and all(result["ok"] for result in results) and not problems,
        "turns": sum(row["turns"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "tolerance": TOLERANCE,
        "max_abs_diff": max((row["max_abs_diff"] for row in rows), default=0.0),
        "later_prompts_extend_earlier_turns": not problems,
        "by_version": rows,
        "problems": list(problems),
    }


async def _run_tool(file: Path, home: Home) -> dict[str, Any]:
    command = [sys.executable, "-m", "longshore_trainer.capture_check", "--input", str(file), "-o", "json"]
    command += ["--tolerance", str(TOLERANCE)]
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
