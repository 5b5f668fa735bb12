"""The trajectory store: batches come from there, each group once, and the ledger is marked there."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore_common.grpc_client import sync_channel
from longshore_common.tensors import unpack_f32, unpack_i32, unpack_u8
from longshore_trainer.clients.calls import PatientCaller
from longshore_trainer.domain.batch import Attempt, Batch, Group, Segment, check_segment


@dataclass(frozen=True)
class Taken:
    """Answer of one long poll: a serialised batch, nothing yet, or the end of the run."""

    batch: bytes | None
    closed: bool
    groups_available: int


class BatchSource(Protocol):
    """Where batches come from."""

    def resume(self, step: int, consumed_group_ids: list[str]) -> None:
        """A new incarnation takes over; the manifest's ledger wins."""

    def take(self, step: int, groups: int, max_staleness: int, wait_s: float) -> Taken:
        """The batch of `step`; the same again when asked again."""

    def commit(self, step: int, batch_id: str) -> None:
        """Marks the batch's groups consumed."""


class TrajectoryClient:
    """BatchSource over gRPC. Raises Conflict when a newer incarnation has taken over."""

    def __init__(self, address: str, secret: str, run_id: str, incarnation: int, caller: PatientCaller) -> None:
        self._stub = trajectory_pb2_grpc.TrajectoryServiceStub(sync_channel(address, secret))
        self._run_id, self._incarnation, self._caller = run_id, incarnation, caller

    def resume(self, step: int, consumed_group_ids: list[str]) -> None:
        request = trajectory_pb2.ResumeRunRequest(
            run_id=self._run_id, incarnation=self._incarnation, step=step, consumed_group_ids=consumed_group_ids
        )
        self._caller(self._stub.ResumeRun, request, what="ResumeRun", timeout_s=60)

    def take(self, step: int, groups: int, max_staleness: int, wait_s: float) -> Taken:
        request = trajectory_pb2.TakeBatchRequest(
            run_id=self._run_id,
            incarnation=self._incarnation,
            step=step,
            max_staleness=max_staleness,
            groups=groups,
            wait_s=wait_s,
        )
        response = self._caller(self._stub.TakeBatch, request, what="TakeBatch", timeout_s=wait_s + 30)
        batch = response.batch.SerializeToString() if response.HasField("batch") else None
        return Taken(batch=batch, closed=response.closed, groups_available=response.groups_available)

    def commit(self, step: int, batch_id: str) -> None:
        request = trajectory_pb2.CommitBatchRequest(
            run_id=self._run_id, incarnation=self._incarnation, step=step, batch_id=batch_id
        )
        self._caller(self._stub.CommitBatch, request, what="CommitBatch", timeout_s=30)


def parse_batch(data: bytes) -> Batch:
    """A domain batch from a serialised one, its segments checked. Raises InvalidSpec."""
    message = trajectory_pb2.Batch.FromString(data)
    return Batch(message.batch_id, message.step, tuple(_group(group) for group in message.groups))


def _group(message: trajectory_pb2.TrainGroup) -> Group:
    return Group(message.group_id, tuple(_attempt(attempt) for attempt in message.attempts))


def _attempt(message: trajectory_pb2.TrainAttempt) -> Attempt:
    segments = tuple(_segment(segment) for segment in message.segments)
    for segment in segments:
        check_segment(segment, message.attempt_id)
    reward = message.reward if message.HasField("reward") else None
    return Attempt(message.attempt_id, reward, message.staleness, segments)


def _segment(message: trajectory_pb2.Segment) -> Segment:
    return Segment(
        token_ids_T=unpack_i32(message.token_ids),
        loss_mask_T=unpack_u8(message.loss_mask).astype(np.bool_),
        logprobs_T=unpack_f32(message.logprobs),
        versions_T=unpack_i32(message.versions),
    )
