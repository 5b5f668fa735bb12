"""The loop against real gRPC peers, with an engine that only counts: order of effects, resume, stop, refusal."""

import json
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

from longshore.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from longshore_common.errors import Conflict, Internal, PermissionDenied, Unavailable
from longshore_common.grpc_client import call_sync, sync_channel
from longshore_trainer.api.server import serving
from longshore_trainer.clients.calls import PatientCaller
from longshore_trainer.clients.controller import ControllerClient
from longshore_trainer.clients.gateway import GatewayClient
from longshore_trainer.clients.trajectory import TrajectoryClient
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.job import Job, parse_job
from longshore_trainer.engine.base import ForwardInputs, ForwardOutputs
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.store.checkpoints import CheckpointStore
from longshore_trainer.training.policy import Peers, PolicyTraining
from longshore_trainer.training.status import JobStatus

METRICS = {
    *("reward_mean", "solve_rate", "loss", "entropy", "kl", "mismatch_kl", "clip_fraction", "grad_norm", "tokens"),
    *("zero_variance_groups", "groups", "attempts_scored", "attempts_failed", "learning_rate", "peak_rss_bytes"),
    *("mismatch_kl_max", "clip_fraction_high", "clip_fraction_low", "staleness_mean", "staleness_max"),
}


class CountingEngine:
    """A one-weight policy: every log-probability is that weight."""

    def __init__(self) -> None:
        self.weight = torch.tensor(-5.5, dtype=torch.float64, requires_grad=True)
        self.broken = False

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        count = inputs.targets_N.shape[0]
        return ForwardOutputs(self.weight.expand(count).float(), torch.zeros(count))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> float:
        assert self.weight.grad is not None
        norm = float(self.weight.grad.abs())
        with torch.no_grad():
            self.weight -= learning_rate * self.weight.grad
        self.weight.grad = None
        return float("nan") if self.broken else norm

    def reference(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save_state(self, folder: Path) -> None:
        (folder / "weight").write_text(repr(float(self.weight.detach())))

    def load_state(self, folder: Path) -> None:
        self.weight = torch.tensor(float((folder / "weight").read_text()), dtype=torch.float64, requires_grad=True)

    def save_policy(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "adapter").write_text(repr(float(self.weight.detach())))

    def weights_digest(self) -> str:
        return repr(float(self.weight.detach()))


def make_job(tmp_path: Path, address: str, incarnation: int = 1, **changes: Any) -> Job:
    (tmp_path / "v0").mkdir(exist_ok=True)
    raw = {
        "kind": "rl",
        "run_id": "run",
        "incarnation": incarnation,
        "alias": "demo",
        "addresses": dict.fromkeys(("trajectory", "gateway", "controller"), address),
        "model_dir": str(tmp_path / "v0"),
        "out_dir": str(tmp_path / "out"),
        "preset": "grpo",
        "overrides": {"learning_rate": 0.1},
        "steps": 3,
        "groups_per_step": 2,
        "lora": {"rank": 2, "alpha": 4},
    }
    return parse_job(json.dumps(raw | changes), "job")


def training(job: Job, engine: CountingEngine | None = None, patience_s: float = 5.0) -> PolicyTraining:
    hp = job.hyperparameters()
    assert isinstance(hp, PolicyHyperparameters)
    caller, address = PatientCaller(patience_s, base_s=0.01), job.addresses.controller
    clients = Peers(
        TrajectoryClient(address, "", job.run_id, job.incarnation, caller),
        GatewayClient(address, "", job.run_id, job.alias, job.incarnation, caller, 5.0),
        ControllerClient(address, "", job.run_id, job.incarnation, caller),
    )
    store, status = CheckpointStore(job.out_dir, job.incarnation), JobStatus(job.run_id, job.incarnation)
    return PolicyTraining(job, hp, engine or CountingEngine(), Ranks(0, 1), store, clients, status, take_wait_s=0.1)


def test_each_step_publishes_then_commits_then_reports(tmp_path: Path, peers: Any) -> None:
    peers.pending_polls = 2
    training(make_job(tmp_path, peers.address)).run()
    steps = [f"{call} {step}" for step in (1, 2, 3) for call in ("take", "publish", "commit", "report")]
    assert peers.calls == ["resume 0", *steps]
    assert set(peers.reports[0].metrics) == METRICS
    parts = {"wait_for_batch", "train", "reference", "forward", "backward", "optimizer", "checkpoint", "publish"}
    assert set(peers.reports[0].seconds) == parts
    assert (peers.reports[0].metrics["attempts_scored"], peers.reports[0].metrics["attempts_failed"]) == (6, 2)
    assert peers.reports[0].total_steps == 3
    assert all(Path(request.uri, "adapter").is_file() for request in peers.published)


def test_the_manifest_is_durable_before_the_publish(tmp_path: Path, peers: Any) -> None:
    peers.fail_publish_times = 10**6
    with pytest.raises(Unavailable, match="version 1"):
        training(make_job(tmp_path, peers.address), patience_s=0.3).run()
    manifest = CheckpointStore(tmp_path / "out", 2).open()
    assert manifest is not None
    assert (manifest.step, manifest.consumed_group_ids) == (1, ("s1-g0", "s1-g1"))


def test_resume_between_publish_and_commit_repeats_and_skips_no_group(tmp_path: Path, peers: Any) -> None:
    """Also cosmos-rl #503, prime-rl #2896: resumed at S it publishes version S again, and trains S + 1 next."""
    peers.fail_commit_at = 2
    with pytest.raises(Internal, match="the store died"):
        training(make_job(tmp_path, peers.address)).run()
    peers.fail_commit_at = 0
    peers.calls.clear()
    resumed = training(make_job(tmp_path, peers.address, incarnation=2))
    resumed.run()
    assert peers.calls[:4] == ["resume 2", "publish 2", "report 2", "take 3"]
    assert list(peers.resumes[-1].consumed_group_ids) == ["s1-g0", "s1-g1", "s2-g0", "s2-g1"]
    assert peers.published[1].digest == peers.published[2].digest


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, peers: Any) -> None:
    for name in ("straight", "resumed"):
        (tmp_path / name).mkdir()
    straight = CountingEngine()
    training(make_job(tmp_path / "straight", peers.address), straight).run()
    peers.fail_commit_at = 2
    with pytest.raises(Internal):
        training(make_job(tmp_path / "resumed", peers.address, incarnation=2)).run()
    peers.fail_commit_at = 0
    resumed = CountingEngine()
    training(make_job(tmp_path / "resumed", peers.address, incarnation=3), resumed).run()
    assert resumed.weights_digest() == straight.weights_digest()
    assert resumed.weights_digest() != CountingEngine().weights_digest()


def test_a_finished_job_ends_at_once(tmp_path: Path, peers: Any) -> None:
    training(make_job(tmp_path, peers.address)).run()
    peers.calls.clear()
    training(make_job(tmp_path, peers.address, incarnation=2)).run()
    assert peers.calls == ["resume 3", "publish 3", "report 3"]


def test_closed_run_and_stop_end_the_job(tmp_path: Path, peers: Any) -> None:
    peers.close_at = 2
    training(make_job(tmp_path, peers.address)).run()
    assert peers.calls[-1] == "report 1"
    peers.close_at, peers.stop_at = 10**9, 2
    training(make_job(tmp_path, peers.address, incarnation=2)).run()
    assert peers.calls[-1] == "report 2"


def test_an_older_incarnation_is_refused(tmp_path: Path, peers: Any) -> None:
    peers.newest_incarnation = 5
    with pytest.raises(Conflict, match="older than the newest"):
        training(make_job(tmp_path, peers.address)).run()


def test_unavailable_gateway_is_waited_for(tmp_path: Path, peers: Any) -> None:
    peers.fail_publish_times = 9
    training(make_job(tmp_path, peers.address, steps=1)).run()
    assert peers.calls[-1] == "report 1"


def test_a_poisoned_step_leaves_no_checkpoint(tmp_path: Path, peers: Any) -> None:
    engine = CountingEngine()
    engine.broken = True
    with pytest.raises(Internal, match=r"step 1: .*nan") as caught:
        training(make_job(tmp_path, peers.address), engine).run()
    assert caught.value.details["groups"] == "s1-g0,s1-g1"
    assert CheckpointStore(tmp_path / "out", 2).open() is None
    assert "publish 1" not in peers.calls


def test_changed_configuration_does_not_go_on(tmp_path: Path, peers: Any) -> None:
    training(make_job(tmp_path, peers.address, steps=1)).run()
    with pytest.raises(Conflict, match="another configuration"):
        training(make_job(tmp_path, peers.address, incarnation=2, overrides={"epochs": 2})).run()


def test_drain_over_grpc_ends_a_waiting_job(tmp_path: Path, peers: Any) -> None:
    peers.pending_polls = 10**6
    job = training(make_job(tmp_path, peers.address))
    with serving(job.status, "127.0.0.1:0", "secret") as address:
        stub = trainer_pb2_grpc.TrainerServiceStub(sync_channel(address, "secret"))
        thread = threading.Thread(target=job.run)
        thread.start()
        status = call_sync(stub.Status, trainer_pb2.StatusRequest())
        assert (status.run_id, status.incarnation) == ("run", 1)
        call_sync(stub.Drain, trainer_pb2.DrainRequest())
        thread.join(timeout=10)
        assert not thread.is_alive()
        assert call_sync(stub.Status, trainer_pb2.StatusRequest()).phase == "done"
        with pytest.raises(PermissionDenied):
            call_sync(
                trainer_pb2_grpc.TrainerServiceStub(grpc.insecure_channel(address)).Drain, trainer_pb2.DrainRequest()
            )


def test_a_port_in_use_is_one_clear_error() -> None:
    status = JobStatus("run", 1)
    with (
        serving(status, "127.0.0.1:0", "") as address,
        pytest.raises(Unavailable, match="cannot listen"),
        serving(status, address, ""),
    ):
        pass
