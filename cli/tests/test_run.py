"""`longshore run` against a controller on a real port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from longshore.controller.v1 import controller_pb2

Cli = Callable[..., Result]


@pytest.fixture
def there(cli: Cli, controller: Any, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands that talk to the fake controller."""
    monkeypatch.setenv("LONGSHORE_SERVER", controller.address)
    monkeypatch.setenv("LONGSHORE_SECRET", "controller-secret")
    return cli


def _spec(tmp_path: Path, text: str = "name: demo\n") -> str:
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    return str(file)


def test_dry_run_prints_the_plan_as_json_and_nothing_else(there: Cli, controller: Any, tmp_path: Path) -> None:
    result = there("run", "submit", _spec(tmp_path), "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["dry_run"] is True
    assert value["plan"]["dataset_digest"] == "sha256:cd"
    assert controller.submitted[0].dry_run
    assert list(controller.runs) == ["run-1"]


def test_dry_run_as_table(there: Cli, tmp_path: Path) -> None:
    result = there("run", "submit", _spec(tmp_path), "--dry-run")
    assert "dataset_digest  sha256:cd" in result.stdout
    assert "nothing was changed" in result.stderr


def test_submit_reads_standard_input_and_passes_the_key(there: Cli, controller: Any) -> None:
    result = there("run", "submit", "-", "--idempotency-key", "k", "-o", "json", input="name: demo\n")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "pending"
    assert controller.submitted[0].idempotency_key == "k"
    assert controller.submitted[0].spec_yaml == "name: demo\n"


def test_a_typo_in_the_spec_is_exit_code_2_with_the_suggestion(there: Cli, tmp_path: Path) -> None:
    result = there("run", "submit", _spec(tmp_path, "algorthm: {}\n"))
    assert result.exit_code == 2
    assert "did you mean 'algorithm'" in result.stderr
    assert result.stdout == ""


def test_a_missing_spec_file(there: Cli) -> None:
    result = there("run", "submit", "none.yaml")
    assert result.exit_code == 2
    assert "cannot read none.yaml" in result.stderr


def test_list_reads_all_pages(there: Cli, controller: Any) -> None:
    controller.runs["run-9"] = controller_pb2.Run(run_id="run-9", name="other", state=controller_pb2.RUN_STATE_FAILED)
    table = there("run", "list")
    assert table.exit_code == 0
    assert table.stdout.splitlines()[0].split() == ["RUN", "NAME", "STATE", "STEP", "VERSION", "AGE", "PLAN"]
    assert [line.split()[:3] for line in table.stdout.splitlines()[1:]] == [
        ["run-1", "demo", "training"],
        ["run-9", "other", "failed"],
    ]
    assert [run["state"] for run in json.loads(there("run", "list", "-o", "json").stdout)] == ["training", "failed"]


def test_get_shows_the_accounts(there: Cli) -> None:
    result = there("run", "get", "run-1")
    assert "10 planned + 0 refilled = 7 scored + 0 failed + 0 discarded + 3 open" in result.stdout


def test_an_unknown_run(there: Cli) -> None:
    result = there("run", "get", "nope")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no run nope")


def test_stop_and_resume(there: Cli) -> None:
    stopped = json.loads(there("run", "stop", "run-1", "--reason", "enough", "-o", "json").stdout)
    assert (stopped["state"], stopped["state_reason"]) == ("stopped", "enough")
    assert json.loads(there("run", "resume", "run-1", "-o", "json").stdout)["state"] == "pending"


@pytest.mark.parametrize(
    ("state", "code"), [(controller_pb2.RUN_STATE_SUCCEEDED, 0), (controller_pb2.RUN_STATE_FAILED, 1)]
)
def test_watch_ends_with_the_runs_result(there: Cli, controller: Any, state: int, code: int) -> None:
    controller.runs["run-1"].state = state  # type: ignore[assignment]
    controller.events = [
        controller_pb2.Event(sequence=i, run_id="run-1", kind="step", message=f"step {i}", data_json="{}")
        for i in (1, 2)
    ]
    result = there("run", "watch", "run-1", "-o", "json")
    assert result.exit_code == code
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["step 1", "step 2"]


def test_watch_times_out_with_exit_code_3(there: Cli, controller: Any) -> None:
    controller.hang = True
    result = there("run", "watch", "run-1", "--timeout", "0.2")
    assert result.exit_code == 3
    assert "has not ended" in result.stderr


def test_a_wrong_secret_is_refused(there: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_SECRET", "wrong")
    result = there("run", "list")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_report_build_writes_both_files(there: Cli, controller: Any, report: dict, tmp_path: Path) -> None:  # type: ignore[type-arg]
    controller.report = report
    result = there("report", "build", "run-1", "--out", "out", "-o", "json")
    assert result.exit_code == 0, result.output
    paths = json.loads(result.stdout)
    assert json.loads((tmp_path / paths["report_json"]).read_text()) == report
    assert "<!doctype html>" in (tmp_path / paths["report_html"]).read_text()[:40]


def test_report_build_of_a_file_that_is_no_report(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    result = cli("report", "build", "x.json", "--out", "out")
    assert result.exit_code == 2
    assert "is not a report" in result.stderr
    assert not (tmp_path / "out").exists()
