"""Whole jobs by the command line, with real DeepSpeed, PEFT and files; the other services are small fakes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from longshore_common.digests import digest_file, tree_digest
from longshore_trainer.store.checkpoints import CheckpointStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINER = [sys.executable, "-m", "longshore_trainer", "--job"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]


def start(job: dict[str, Any], folder: Path, ranks: int = 0, **environment: str) -> subprocess.Popen[str]:
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    launcher = [*TORCHRUN, str(ranks), "-m", "longshore_trainer", "--job"] if ranks else TRAINER
    variables = os.environ | {"OMP_NUM_THREADS": "1", "LONGSHORE_TRAINER_TAKE_WAIT_S": "0.2"} | environment
    return subprocess.Popen([*launcher, str(path)], stderr=subprocess.PIPE, text=True, env=variables)


def run(job: dict[str, Any], folder: Path, ranks: int = 0, **environment: str) -> tuple[int, str]:
    process = start(job, folder, ranks, **environment)
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors


def rl_job(model_dir: Path, out_dir: Path, address: str, incarnation: int = 1, steps: int = 2) -> dict[str, Any]:
    return {
        "kind": "rl",
        "run_id": "run",
        "incarnation": incarnation,
        "alias": "demo",
        "seed": 1,
        "addresses": dict.fromkeys(("trajectory", "gateway", "controller"), address),
        "model_dir": str(model_dir),
        "out_dir": str(out_dir),
        "preset": "grpo",
        "overrides": {"learning_rate": 1e-3, "epochs": 2, "minibatch_size": 4, "micro_batch_tokens": 64},
        "steps": steps,
        "groups_per_step": 2,
        "lora": {"rank": 4, "alpha": 8},
    }


def sft_job(model_dir: Path, out_dir: Path, demonstrations: Path) -> dict[str, Any]:
    return {
        "kind": "sft",
        "run_id": "run",
        "model_dir": str(model_dir),
        "out_dir": str(out_dir),
        "preset": "sft",
        "seed": 1,
        "demonstrations": str(demonstrations),
        "overrides": {
            "learning_rate": 2e-3,
            "warmup_steps": 2,
            "phases": [{"steps": 12, "batch_size": 8}, {"steps": 8, "batch_size": 4}],
            "checkpoint_every": 5,
        },
    }


def weights(out_dir: Path, step: int) -> str:
    (folder,) = (out_dir / "adapters").glob(f"v{step}-*")
    return digest_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("zero_stage", ["0", "1"])
def test_resumed_after_a_kill_equals_uninterrupted_bit_for_bit(
    tmp_path: Path, model_dir: Path, peers: Any, zero_stage: str
) -> None:
    """The kill falls between publish and commit of step 1."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    stage = {"LONGSHORE_TRAINER_ZERO_STAGE": zero_stage}
    code, errors = run(rl_job(model_dir, straight, peers.address), tmp_path, **stage)
    assert code == 0, errors[-3000:]
    peers.fail_commit_at = 1
    code, errors = run(rl_job(model_dir, broken, peers.address, incarnation=2), tmp_path, **stage)
    assert (code, "the store died" in errors) == (1, True), errors[-3000:]
    assert json.loads((tmp_path / "job.json.error.json").read_text())["code"] == "internal"
    peers.fail_commit_at = 0
    code, errors = run(rl_job(model_dir, broken, peers.address, incarnation=3), tmp_path, **stage)
    assert code == 0, errors[-3000:]
    assert weights(straight, 1) == weights(broken, 1)
    assert weights(straight, 2) == weights(broken, 2)
    assert weights(straight, 1) != weights(straight, 2)
    assert not (tmp_path / "job.json.error.json").exists()


def test_an_adapter_loads_in_plain_peft_and_its_digest_is_the_published_one(
    tmp_path: Path, model_dir: Path, peers: Any
) -> None:
    code, errors = run(rl_job(model_dir, tmp_path / "out", peers.address, steps=1), tmp_path)
    assert code == 0, errors[-3000:]
    (request,) = peers.published
    assert request.digest == tree_digest(Path(request.uri))
    assert Path(request.uri).is_absolute()
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(str(model_dir)), request.uri)
    moved = [float(w.abs().sum()) for name, w in model.named_parameters() if "lora_B" in name]
    assert len(moved) == 4 * 7
    assert min(moved) > 0


def test_two_ranks_by_torchrun(tmp_path: Path, model_dir: Path, peers: Any) -> None:
    peers.pending_polls = 2
    code, errors = run(rl_job(model_dir, tmp_path / "out", peers.address), tmp_path, ranks=2)
    assert code == 0, errors[-3000:]
    assert peers.calls[-4:] == ["take 2", "publish 2", "commit 2", "report 2"]


def test_a_dead_rank_ends_the_job(tmp_path: Path, model_dir: Path, peers: Any) -> None:
    peers.pending_polls = 10**6
    process = start(rl_job(model_dir, tmp_path / "out", peers.address), tmp_path, ranks=2)
    deadline = time.monotonic() + 300
    while not peers.resumes and time.monotonic() < deadline:
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(timeout=60) != 0


def test_warm_start_makes_version_zero_and_goes_on_after_a_kill(
    tmp_path: Path, model_dir: Path, demonstrations: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    code, errors = run(sft_job(model_dir, straight, demonstrations), tmp_path)
    assert code == 0, errors[-3000:]
    assert {p.name for p in (straight / "v0").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert digest_file(straight / "v0" / "tokenizer.json") == digest_file(model_dir / "tokenizer.json")
    assert [p.name for p in straight.iterdir()] == ["v0"]

    process = start(sft_job(model_dir, killed, demonstrations), tmp_path)
    manifests = killed / "warm-start" / "manifests"
    while process.poll() is None and not list(manifests.glob("*.json")):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (killed / "v0").exists()
    manifest = CheckpointStore(killed / "warm-start", 1).open()
    assert manifest is not None
    assert manifest.step in (5, 10, 15)
    code, errors = run(sft_job(model_dir, killed, demonstrations), tmp_path)
    assert code == 0, errors[-3000:]
    assert "warm start goes on" in errors
    assert digest_file(killed / "v0" / "model.safetensors") == digest_file(straight / "v0" / "model.safetensors")

    started = time.monotonic()
    assert run(sft_job(model_dir, killed, demonstrations), tmp_path)[0] == 0
    assert time.monotonic() - started < 10


def test_warm_start_with_plain_torch_equals_deepspeed(tmp_path: Path, model_dir: Path, demonstrations: Path) -> None:
    digests = set()
    for engine in ("torch", "deepspeed"):
        job = sft_job(model_dir, tmp_path / engine, demonstrations)
        code, errors = run(job, tmp_path, LONGSHORE_TRAINER_ENGINE=engine)
        assert code == 0, errors[-3000:]
        digests.add(digest_file(tmp_path / engine / "v0" / "model.safetensors"))
    assert len(digests) == 1
