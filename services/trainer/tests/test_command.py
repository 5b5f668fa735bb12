import json
from pathlib import Path

import pytest

from longshore_trainer.main import main


def test_a_bad_job_file_is_exit_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.json"
    job.write_text('{"kind": "sft", "stepps": 1}')
    assert main(["--job", str(job)]) == 2
    errors = capsys.readouterr().err.strip()
    assert "did you mean 'steps'" in errors
    assert "\n" not in errors
    assert json.loads((tmp_path / "job.json.error.json").read_text())["details"]["field"] == "stepps"


def test_a_missing_job_file_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--job", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_check_prints_hyper_parameters_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"kind": "sft", "run_id": "r", "model_dir": "m", "out_dir": str(tmp_path / "out"), "preset": "sft"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job | {"demonstrations": "d.jsonl", "overrides": {"learning_rate": 0.5}}))
    assert main(["--job", str(path), "--check"]) == 0
    assert json.loads(capsys.readouterr().out)["learning_rate"] == 0.5
    assert not (tmp_path / "out").exists()


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--presets"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"sft", "grpo", "rloo"}


def test_a_finished_warm_start_is_exit_0_at_once(tmp_path: Path) -> None:
    (tmp_path / "out" / "v0").mkdir(parents=True)
    job = {"kind": "sft", "run_id": "r", "model_dir": "m", "out_dir": str(tmp_path / "out"), "preset": "sft"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job | {"demonstrations": "d.jsonl"}))
    assert main(["--job", str(path)]) == 0
