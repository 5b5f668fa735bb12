"""Parts of the demo: markers, config, spec, progress, capture sample. The whole of it is tests/e2e's."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from longshore.trajectory.v1 import trajectory_pb2
from longshore_cli.demo.capture import lineage_problems, merge, pick, turn_value
from longshore_cli.demo.config import DemoConfig, fill_spec, settle_config, write_config
from longshore_cli.demo.progress import Progress, Stage
from longshore_cli.demo.runner import clear_home, plan_stages
from longshore_cli.demo.stages import Markers
from longshore_cli.demo.summary import summary_rows
from longshore_cli.demo.watch import RunProgress
from longshore_cli.errors import CliError
from longshore_cli.local.home import Home
from longshore_cli.report.render import write_report

Cli = Callable[..., Result]

SPEC: dict[str, Any] = {
    "name": "demo-grpo",
    "seed": 1,
    "model": {"path": "runs/demo/model"},
    "tasks": {"dataset": "demo"},
    "warm_start": {"preset": "sft", "demonstrations": "x", "overrides": {"learning_rate": 0.002}},
    "rollout": {"group_size": 8, "groups_per_step": 12},
    "algorithm": {"preset": "grpo", "steps": 15},
    "evaluation": {"dev_every": 5},
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "demo")
    place.path.mkdir()
    return place


async def test_a_stage_is_done_only_with_the_same_inputs_and_outputs(home: Home) -> None:
    markers = Markers(home)
    (home.path / "tasks").mkdir()
    (home.path / "tasks" / "a").write_text("1")
    assert not await markers.done("tasks", {"seed": 1})
    await markers.mark("tasks", {"seed": 1}, [home.path / "tasks"])
    assert await markers.done("tasks", {"seed": 1})
    assert not await markers.done("tasks", {"seed": 2})
    (home.path / "tasks" / "a").write_text("2")
    assert not await markers.done("tasks", {"seed": 1}), "an output that merely exists proves nothing"


async def test_a_stage_whose_output_is_gone_is_not_done(home: Home) -> None:
    (home.path / "f").write_text("1")
    await Markers(home).mark("f", {}, [home.path / "f"])
    (home.path / "f").unlink()
    assert not await Markers(home).done("f", {})


def test_a_home_keeps_its_config(home: Home) -> None:
    assert settle_config(home, None, None, False) == DemoConfig(1, None, False)
    write_config(home, DemoConfig(7, 3, True))
    assert settle_config(home, None, None, False) == DemoConfig(7, 3, True)
    assert settle_config(home, 7, None, True) == DemoConfig(7, 3, True)
    with pytest.raises(CliError, match=r"made with seed 7, 3 steps, --quick, now it is seed 8.*--fresh"):
        settle_config(home, 8, None, False)


def test_fresh_removes_only_a_demos_home(home: Home) -> None:
    (home.path / "thesis.txt").write_text("years")
    with pytest.raises(CliError, match="not the home of a demo"):
        clear_home(home)
    assert (home.path / "thesis.txt").exists()
    write_config(home, DemoConfig(1, None, False))
    with home.locked(), pytest.raises(CliError, match="in use"):
        clear_home(home)
    clear_home(home)
    assert not home.path.exists()
    clear_home(home)


def test_the_spec_gets_this_homes_paths_and_seed(home: Home) -> None:
    filled = fill_spec(SPEC, home, DemoConfig(5, 9, False))
    assert filled["seed"] == 5
    assert filled["model"]["path"] == str(home.path / "model")
    assert filled["warm_start"]["demonstrations"] == str(home.path / "demonstrations.jsonl")
    assert filled["warm_start"]["overrides"] == {"learning_rate": 0.002}
    assert filled["algorithm"]["steps"] == 9
    assert SPEC["seed"] == 1, "the template is not changed"
    assert fill_spec(SPEC, home, DemoConfig(5, None, False))["algorithm"]["steps"] == 15
    assert fill_spec(SPEC, home, DemoConfig(5, None, True))["algorithm"]["steps"] == 2


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _progress(*stages: Stage) -> tuple[Progress, _Clock, io.StringIO]:
    clock, stream = _Clock(), io.StringIO()
    return Progress(stages, stream=stream, clock=clock), clock, stream


def test_the_estimate_follows_a_stages_own_pace() -> None:
    progress, clock, stream = _progress(Stage("a", 10), Stage("b", 100))
    assert progress.left_s() == 110
    progress.begin("a")
    clock.now = 4
    assert progress.left_s() == 106
    progress.update("a", 0.1)
    assert progress.left_s() == pytest.approx(4 * 9 + 100)
    progress.end("a")
    assert progress.left_s() == 100
    assert stream.getvalue().splitlines()[-1] == "[0:04] a           done in 0:04  (about 1:40 left)"


def test_the_estimate_of_a_stage_that_goes_on_counts_only_what_it_did_now() -> None:
    progress, clock, _ = _progress(Stage("training", 100))
    progress.begin("training", fraction=0.5)
    clock.now = 10
    progress.update("training", 0.75)
    assert progress.left_s() == pytest.approx(10)


def test_off_a_terminal_there_is_one_plain_line_per_event() -> None:
    progress, clock, stream = _progress(Stage("a", 10))
    progress.begin("a", "go")
    for done in range(100):
        clock.now += 1
        progress.update("a", done / 200, f"{done} of 200")
    for done in range(100, 200):
        progress.update("a", done / 200, f"{done} of 200")
    progress.end("a")
    progress.end("a")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2 + 5, stream.getvalue()


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0, 1))
def test_left_is_never_negative(fractions: list[float], begun: float) -> None:
    progress, clock, _ = _progress(Stage("a", 10))
    progress.begin("a", fraction=begun)
    for fraction in fractions:
        clock.now += 3
        progress.update("a", fraction)
        assert progress.left_s() >= 0
        assert progress.stages[0].fraction >= begun, "progress does not go back"


def test_run_events_move_the_stages() -> None:
    stages = plan_stages(DemoConfig(1, None, False), SPEC)
    progress, _, stream = _progress(*stages)
    shown = RunProgress(progress, 0, 15)
    shown.take("run.state", "warming", {"state": "warming"})
    shown.take("warm_start", "step 100", {"step": 100, "total_steps": 400})
    assert progress.current is not None
    assert (progress.current.name, progress.current.fraction) == ("warm start", 0.25)
    shown.take("run.state", "training", {"state": "training"})
    shown.take("step", "step 3", {"step": 3})
    assert (progress.current.name, progress.current.fraction) == ("training", 3 / 15)
    for _ in range(32):
        shown.take("lease.expired", "attempt a: worker 'w' was silent", {})
    shown.take("trainer.restart", "trainer ended with status 1; starting it again", {})
    assert "starting it again" in stream.getvalue()
    assert stream.getvalue().count("silent") == 1
    assert "32 attempts leased again" in stream.getvalue()
    shown.finish()
    assert progress.current is None


def _turn(number: int, parent: int, prompt: list[int], completion: list[int]) -> trajectory_pb2.Turn:
    turn = trajectory_pb2.Turn(turn=number, parent_turn=parent, prompt_ids=prompt, completion_ids=completion)
    turn.logprobs.extend([-0.5] * len(completion))
    turn.versions.add(first_token=0, version=4)
    turn.sampling.temperature = 0.5
    return turn


def test_a_turn_that_was_encoded_again_is_found() -> None:
    """Chat completions re-tokenise earlier turns: 10-20% of second turns no longer extended the first."""
    first = _turn(0, -1, [1, 2], [3, 4])
    assert lineage_problems("a", [first, _turn(1, 0, [1, 2, 3, 4, 9], [5])]) == []
    (problem,) = lineage_problems("a", [first, _turn(1, 0, [1, 2, 34, 9], [5])])
    assert "turn 1 of a does not extend turn 0" in problem


def test_turns_for_the_trainers_tool() -> None:
    value = turn_value("a", _turn(1, 0, [1, 2], [3]), {4: "/runs/r/adapters/v4-i2"})
    assert value.pop("adapter_dir") == "/runs/r/adapters/v4-i2"
    assert value == {
        "attempt_id": "a",
        "turn": 1,
        "version": 4,
        "prompt_ids": [1, 2],
        "completion_ids": [3],
        "logprobs": [-0.5],
        "temperature": 0.5,
    }


def _answer(ok: bool, **versions: float) -> dict[str, Any]:
    return {
        "ok": ok,
        "versions": {n: {"turns": 2, "tokens": 9, "max_abs_difference": d} for n, d in versions.items()},
    }


def test_the_checks_answers_are_one_result() -> None:
    names = {"base": 0, "v10": 10, "v2": 2, "v1": 1}
    merged = merge([_answer(True, base=2e-6, v10=4e-6), _answer(True, v10=5e-6, v2=1e-6)], names, [])
    assert merged["ok"]
    assert [(v["version"], v["turns"], v["max_abs_diff"]) for v in merged["by_version"]] == [
        (0, 2, 2e-6),
        (2, 2, 1e-6),
        (10, 4, 5e-6),
    ]
    assert (merged["turns"], merged["tokens"], merged["max_abs_diff"]) == (8, 36, 5e-6)
    assert not merge([_answer(True, v1=0.0), _answer(False, v1=1.0)], names, [])["ok"]
    assert not merge([_answer(True, v1=0.0)], names, ["turn 1 was encoded again"])["ok"]
    assert not merge([], names, [])["ok"]


@given(st.lists(st.integers(0, 50)), st.integers(2, 8))
def test_pick_keeps_first_and_last(items: list[int], count: int) -> None:
    found = pick(items, count)
    assert len(found) <= count
    assert set(found) <= set(items)
    if items:
        assert {min(items), max(items)} <= set(found)


async def test_a_finished_demo_says_so_and_starts_nothing(cli: Cli, report: dict[str, Any], tmp_path: Path) -> None:
    home = Home(tmp_path / "runs" / "demo")
    write_config(home, DemoConfig(1, None, False))
    files = write_report(report, home.path)
    await Markers(home).mark("report", {"run": "r"}, list(files))
    result = cli("demo")
    assert result.exit_code == 0, result.output
    assert "this demo is finished" in result.stderr
    assert "1440 planned + 8 refilled = 1437 scored + 3 failed + 8 discarded + 0 open; 5 retried" in result.stdout
    assert not (home.path / "lock").exists()
    refused = cli("demo", "--seed", "2")
    assert refused.exit_code == 2
    assert "--fresh" in refused.stderr


def test_a_failed_capture_check_is_in_the_summary(report: dict[str, Any]) -> None:
    report["capture_check"]["ok"] = False
    rows = dict(summary_rows(report, Path("r.html")))
    assert rows["capture check"].startswith("FAILED")
    assert rows["verdict"] == "improved"
