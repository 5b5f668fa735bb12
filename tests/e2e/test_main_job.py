"""The main job on the real engine, trainer and sandboxes: killed by `kill -9` in the middle, run again, then looked at.

One short run serves all tests of this file: it is what takes time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import runpy
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore_cli.local.home import Home
from longshore_cli.local.process import snapshot_services
from longshore_common.grpc_client import open_channel
from tests.e2e.conftest import LONGSHORE, REPOSITORY, environment, processes_of, start, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 3


@dataclass(frozen=True)
class Finished:
    """A run that was killed once and then went to its end."""

    home: Path
    survivors: list[str]
    killed_after_step: int
    output: str
    report: dict[str, Any]


def manifests(home: Path) -> int:
    return len(list(home.glob("checkpoints/*/manifests/*.json")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    home = tmp_path_factory.mktemp("main") / "home"
    log = home.parent / "first.log"
    command = (LONGSHORE, "demo", "--home", str(home), "--quick", "--steps", str(STEPS))
    process = start(*command, log=log)
    try:
        until(lambda: manifests(home) >= 1 or process.poll() is not None, 900, "first manifest")
        assert process.poll() is None, log.read_text()[-3000:]
        step = manifests(home)
    finally:
        process.kill()
        process.wait()
    with_grace: list[list[str]] = [[]]

    def gone() -> bool:
        with_grace[0] = processes_of(home, {os.getpid()})
        return not with_grace[0]

    with contextlib.suppress(AssertionError):  # said by the test below, with the processes' names
        until(gone, 20, "all processes of the killed run gone")
    again = subprocess.run(
        [*command, "-o", "json"], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=900
    )
    assert again.returncode == 0, again.stderr[-3000:]
    report = json.loads((home / "report.json").read_text())
    return Finished(home, with_grace[0], step, again.stdout, report)


def ask(finished: Finished, question: Callable[[Any], Awaitable[Any]]) -> Any:
    """Asks a trajectory store that runs on a copy of the home's database."""

    async def go() -> Any:
        async with snapshot_services(Home(finished.home), ["trajectory-store"]) as local:
            channel = open_channel(local.endpoints.grpc["trajectory-store"], local.secret)
            async with channel:
                return await question(trajectory_pb2_grpc.TrajectoryServiceStub(channel))

    return asyncio.run(go())


def run_id(finished: Finished) -> str:
    return str(next(finished.home.glob("checkpoints/*")).name)


def test_kill_9_leaves_no_process_behind(finished: Finished):
    assert finished.survivors == []


def test_the_report_has_what_others_rely_on(finished: Finished):
    check = runpy.run_path(str(REPOSITORY / "tools" / "check_report.py"))
    assert check["problems"](finished.report) == []
    assert [step["step"] for step in finished.report["steps"]] == list(range(1, STEPS + 1))
    assert json.loads(finished.output)["report"]["verdict"] == finished.report["verdict"]
    assert "<svg" in (finished.home / "report.html").read_text()


def test_every_group_was_trained_on_once_and_none_was_lost(finished: Finished):
    async def groups(stub: Any) -> Any:
        request = trajectory_pb2.ListGroupsRequest(run_id=run_id(finished), purpose=trajectory_pb2.PURPOSE_TRAIN)
        return (await stub.ListGroups(request)).groups

    found = ask(finished, groups)
    consumed = [group for group in found if group.state == trajectory_pb2.GROUP_STATE_CONSUMED]
    per_step = Counter(group.consumed_step for group in consumed)
    assert set(per_step) == set(range(1, STEPS + 1))
    assert len(set(per_step.values())) == 1, f"every step takes the same number of groups: {per_step}"
    newest = max(finished.home.glob("checkpoints/*/manifests/*.json"), key=lambda path: path.stat().st_mtime)
    ledger = json.loads(newest.read_text())["consumed_group_ids"]
    assert sorted(ledger) == sorted(group.group_id for group in consumed)
    assert not [group for group in found if group.state == trajectory_pb2.GROUP_STATE_TAKEN]


def test_planned_and_refilled_are_accounted_for(finished: Finished):
    async def count(stub: Any) -> Any:
        request = trajectory_pb2.GetCountsRequest(run_id=run_id(finished), purpose=trajectory_pb2.PURPOSE_TRAIN)
        return (await stub.GetCounts(request)).counts

    counts = ask(finished, count)
    assert counts.planned > 0
    assert counts.planned + counts.refilled == counts.scored + counts.failed + counts.discarded + counts.open
    assert counts.open == 0


def test_every_captured_turn_equals_a_fresh_forward_pass(finished: Finished):
    """Ids and logprobs of all turns, against the weights of the version that each turn says it came from."""
    from longshore_cli.demo.capture import compare_captured

    checkpoints = finished.home / "checkpoints" / run_id(finished)
    folders = {0: str(checkpoints / "v0")}
    for manifest in checkpoints.glob("manifests/*.json"):
        value = json.loads(manifest.read_text())
        folders[value["version"]] = str(checkpoints / value["policy"]["path"])

    async def check(stub: Any) -> Any:
        return await compare_captured(Home(finished.home), run_id(finished), folders, stub, 10_000, 10_000)

    result = ask(finished, check)
    assert result["problems"] == []
    assert result["ok"], result
    assert result["turns"] > 50
    assert {row["version"] for row in result["by_version"]} >= {0, 1, STEPS}


def test_masks_are_one_exactly_on_sampled_tokens(finished: Finished):
    """What the trainer read: each segment's masked tokens are the completions of its turns, in order, unchanged."""

    async def attempts(stub: Any) -> Any:
        request = trajectory_pb2.ListAttemptsRequest(
            run_id=run_id(finished), purpose=trajectory_pb2.PURPOSE_TRAIN, page_size=40
        )
        listed = (await stub.ListAttempts(request)).attempts
        return [
            await stub.GetAttempt(trajectory_pb2.GetAttemptRequest(attempt_id=a.attempt_id, with_turns=True))
            for a in listed
        ]

    from longshore_trajectory_store.api.mapping import turn_from_proto
    from longshore_trajectory_store.domain.segments import build_segments

    seen = 0
    for answer in ask(finished, attempts):
        turns = [turn for turn in answer.turns if turn.lease_epoch == answer.attempt.epoch]
        sampled = [token for turn in turns for token in turn.completion_ids]
        masked: list[int] = []
        for segment in build_segments(turn_from_proto(turn) for turn in turns):
            masked += [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
        assert masked == sampled
        seen += len(turns)
    assert seen > 40


def test_a_finished_demo_says_so_and_does_nothing(finished: Finished):
    before = (finished.home / "report.json").stat().st_mtime_ns
    done = subprocess.run(
        [LONGSHORE, "demo", "--home", str(finished.home)],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "finished" in done.stderr
    assert (finished.home / "report.json").stat().st_mtime_ns == before
