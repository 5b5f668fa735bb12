"""Shared fixtures: a tiny model folder and demonstrations, and small in-memory peers as real gRPC servers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from longshore.controller.v1 import controller_pb2, controller_pb2_grpc
from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore_common.tensors import pack_f32, pack_i32, pack_u8


@dataclass
class Peers:
    """What the three services saw and do. `calls` is one list, so that order across services shows."""

    calls: list[str] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    published: list[Any] = field(default_factory=list)
    resumes: list[Any] = field(default_factory=list)
    newest_incarnation: int = 0
    pending_polls: int = 0
    close_at: int = 10**9
    stop_at: int = 10**9
    fail_publish_times: int = 0
    fail_commit_at: int = 0
    vocabulary: int = 300
    address: str = ""

    def check(self, incarnation: int, context: Any) -> None:
        if incarnation < self.newest_incarnation:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"incarnation {incarnation} is older than the newest")
        self.newest_incarnation = incarnation


class FakeTrajectory(trajectory_pb2_grpc.TrajectoryServiceServicer):
    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def ResumeRun(self, request: Any, context: Any) -> Any:
        self.peers.check(request.incarnation, context)
        self.peers.calls.append(f"resume {request.step}")
        self.peers.resumes.append(request)
        return trajectory_pb2.ResumeRunResponse()

    def TakeBatch(self, request: Any, context: Any) -> Any:
        self.peers.check(request.incarnation, context)
        if request.step >= self.peers.close_at:
            return trajectory_pb2.TakeBatchResponse(closed=True)
        if self.peers.pending_polls > 0:
            self.peers.pending_polls -= 1
            return trajectory_pb2.TakeBatchResponse(groups_available=1)
        self.peers.calls.append(f"take {request.step}")
        return trajectory_pb2.TakeBatchResponse(batch=make_batch(request.step, request.groups, self.peers.vocabulary))

    def CommitBatch(self, request: Any, context: Any) -> Any:
        self.peers.check(request.incarnation, context)
        if request.step == self.peers.fail_commit_at:
            context.abort(grpc.StatusCode.INTERNAL, "the store died")
        self.peers.calls.append(f"commit {request.step}")
        return trajectory_pb2.CommitBatchResponse()


class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def PublishPolicy(self, request: Any, context: Any) -> Any:
        self.peers.check(request.incarnation, context)
        if self.peers.fail_publish_times > 0:
            self.peers.fail_publish_times -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is starting")
        self.peers.calls.append(f"publish {request.version}")
        self.peers.published.append(request)
        return gateway_pb2.PublishPolicyResponse(engines_confirmed=1)


class FakeController(controller_pb2_grpc.ControllerServiceServicer):
    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def ReportStep(self, request: Any, context: Any) -> Any:
        self.peers.calls.append(f"report {request.step}")
        self.peers.reports.append(request)
        return controller_pb2.ReportStepResponse(stop=request.step >= self.peers.stop_at)


@contextmanager
def serving_peers(peers: Peers) -> Iterator[Peers]:
    server = grpc.server(ThreadPoolExecutor(4))
    trajectory_pb2_grpc.add_TrajectoryServiceServicer_to_server(FakeTrajectory(peers), server)
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(FakeGateway(peers), server)
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(FakeController(peers), server)
    peers.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield peers
    finally:
        server.stop(grace=0).wait()


def make_batch(step: int, groups: int, vocabulary: int) -> Any:
    """The same batch for the same step: groups of 4 attempts, one failed, of uneven lengths."""
    rng = np.random.default_rng(step)
    return trajectory_pb2.Batch(
        batch_id=f"batch-{step}",
        step=step,
        groups=[
            trajectory_pb2.TrainGroup(
                group_id=f"s{step}-g{group}",
                attempts=[_attempt(f"s{step}-g{group}-{index}", index, rng, vocabulary) for index in range(4)],
            )
            for group in range(groups)
        ],
    )


def _attempt(name: str, index: int, rng: np.random.Generator, vocabulary: int) -> Any:
    prompt, sampled = int(rng.integers(3, 30)), int(rng.integers(1, 12))
    mask = [0] * prompt + [1] * sampled
    segment = trajectory_pb2.Segment(
        token_ids=pack_i32(rng.integers(0, vocabulary, prompt + sampled)),
        loss_mask=pack_u8(mask),
        logprobs=pack_f32(np.where(mask, -5.5 + rng.normal(0, 0.2, len(mask)), 0)),
        versions=pack_i32([0 if m else -1 for m in mask]),
        length=prompt + sampled,
    )
    reward = None if index == 3 else float(index % 2)
    return trajectory_pb2.TrainAttempt(attempt_id=name, reward=reward, segments=[segment])


MESSAGES = [
    [
        {"role": "system", "content": "Use the shell."},
        {"role": "user", "content": f"Count the {what} of {name}.txt into out.txt"},
        {"role": "assistant", "content": f"wc -{what[0]} < {name}.txt > out.txt"},
        {"role": "user", "content": "exit 0"},
        {"role": "assistant", "content": "done"},
    ]
    for what in ("lines", "words", "chars")
    for name in ("data", "notes", "poem", "story", "menu")
]


@pytest.fixture(scope="session")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "demonstrations.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in MESSAGES))
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, demonstrations: Path) -> Path:
    from longshore_trainer.tiny_model import build

    out = tmp_path_factory.mktemp("model") / "model"
    build(out, demonstrations, vocab=300, seed=1)
    return out


@pytest.fixture
def peers() -> Iterator[Peers]:
    """FakeTrajectory, FakeGateway and FakeController on one address."""
    with serving_peers(Peers()) as served:
        yield served
