from __future__ import annotations

import json
from pathlib import Path

import pytest

from longshore_controller.clients.launcher import SubprocessLauncher
from longshore_controller.domain.jobs import Addresses, JobFile, rl_job, warm_start_job
from longshore_controller.domain.plan import ResolvedPlan

from .builders import SPEC
from .conftest import Harbor

ADDRESSES = Addresses(trajectory="h:1", gateway="h:2", controller="h:3")


async def jobs(harbor: Harbor) -> tuple[JobFile, JobFile]:
    async with harbor.controller(worker=False, serve=False) as living:
        run, _ = await living.parts.application.submission.submit(SPEC, True, "")
    plan = ResolvedPlan.model_validate_json(run.plan_json)
    out = Path("/checkpoints/run-1")
    warm = warm_start_job(plan, "run-1", 1, "run-1", out, ADDRESSES)
    return warm, rl_job(plan, "run-1", 2, "run-1", out, out / "v0", ADDRESSES)


async def test_job_files_are_what_the_trainer_reads(harbor: Harbor) -> None:
    trainer = pytest.importorskip("longshore_trainer.domain.job")
    warm, policy = await jobs(harbor)
    for job in (warm, policy):
        read = trainer.parse_job(job.model_dump_json(), "job.json")
        assert (read.run_id, read.incarnation, read.preset) == (job.run_id, job.incarnation, job.preset)
    assert (warm.kind, warm.preset, warm.lora, warm.overrides) == ("sft", "sft", None, {})
    assert warm.demonstrations == str(harbor.root / "demonstrations.jsonl")
    assert (policy.kind, policy.model_dir, policy.demonstrations) == ("rl", "/checkpoints/run-1/v0", None)
    assert policy.overrides == {"learning_rate": 1e-3}


async def test_a_job_is_a_file_a_log_and_a_process_and_stops(
    harbor: Harbor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun itself takes seconds to import; a script stands in for the interpreter and shows what it was given."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "$@"; echo "secret=$LONGSHORE_SECRET threads=$OMP_NUM_THREADS"; exec sleep 60\n')
    script.chmod(0o755)
    launcher = SubprocessLauncher(tmp_path / "jobs", tmp_path / "logs", "top-secret", processes=2, threads=1)
    _, policy = await jobs(harbor)
    # Only argv[0] changes: the guard that starts it is the real interpreter.
    monkeypatch.setattr("longshore_controller.clients.launcher.INTERPRETER", str(script))
    job = await launcher.launch(policy)
    log = tmp_path / "logs" / "trainer-run-1-rl-2.log"
    await _until(lambda: log.exists() and "secret=" in log.read_text())
    await job.stop()
    assert await job.wait() != 0
    shown = job.log_tail()
    assert f"--nproc_per_node 2 -m longshore_trainer --job {tmp_path}/jobs/run-1-rl-2.json" in shown
    assert "secret=top-secret threads=1" in shown
    text = (tmp_path / "jobs" / "run-1-rl-2.json").read_text()
    assert json.loads(text)["kind"] == "rl"
    assert "top-secret" not in text


async def _until(condition: object, timeout_s: float = 20.0) -> None:
    import asyncio

    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)
