"""Leases from the controller."""

from collections.abc import Sequence

import grpc.aio

from longshore.controller.v1 import controller_pb2, controller_pb2_grpc
from longshore.trajectory.v1 import trajectory_pb2
from longshore_rollout_worker.clients.outcome import failure_proto
from longshore_rollout_worker.domain.ports import HeartbeatAnswer, Lease, LeaseKey, Sampling
from longshore_rollout_worker.domain.vocabulary import Failure

_HEARTBEAT_TIMEOUT_S = 5.0
_POLL_GRACE_S = 15.0


class GrpcController:
    """Implements domain.ports.Controller."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = controller_pb2_grpc.ControllerServiceStub(channel)

    async def lease(self, worker_id: str, most: int, wait_s: float) -> Sequence[Lease]:
        request = controller_pb2.LeaseAttemptsRequest(worker_id=worker_id, max=most, wait_s=wait_s)
        answer = await self._stub.LeaseAttempts(request, timeout=wait_s + _POLL_GRACE_S)
        return [_lease(each) for each in answer.leases]

    async def heartbeat(self, worker_id: str, keys: Sequence[LeaseKey]) -> HeartbeatAnswer:
        request = controller_pb2.HeartbeatRequest(worker_id=worker_id, leases=[_ref(key) for key in keys])
        answer = await self._stub.Heartbeat(request, timeout=_HEARTBEAT_TIMEOUT_S)
        return HeartbeatAnswer(tuple(map(_key, answer.lost)), tuple(map(_key, answer.cancelled)))

    async def complete(self, worker_id: str, key: LeaseKey, retry: tuple[Failure, str] | None) -> bool:
        request = controller_pb2.CompleteRequest(worker_id=worker_id, lease=_ref(key))
        if retry is not None:
            request.retry.CopyFrom(failure_proto(*retry))
        answer = await self._stub.Complete(request)
        return bool(answer.will_retry)


def _ref(key: LeaseKey) -> controller_pb2.LeaseRef:
    return controller_pb2.LeaseRef(attempt_id=key.attempt_id, epoch=key.epoch)


def _key(ref: controller_pb2.LeaseRef) -> LeaseKey:
    return LeaseKey(ref.attempt_id, ref.epoch)


def _lease(lease: controller_pb2.Lease) -> Lease:
    drawn = lease.sampling
    return Lease(
        key=LeaseKey(lease.attempt_id, lease.epoch),
        run_id=lease.run_id,
        task_digest=lease.task_digest,
        instruction=lease.instruction,
        harness_name=lease.harness_name,
        harness_config_json=lease.harness_config_json,
        policy_alias=lease.policy_alias,
        pinned_version=lease.pinned_version if lease.HasField("pinned_version") else None,
        sampling=Sampling(
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            top_k=drawn.top_k,
            max_tokens=drawn.max_tokens,
            seed=drawn.seed if drawn.HasField("seed") else None,
        ),
        max_turns=lease.max_turns,
        max_tokens=lease.max_tokens,
        agent_timeout_s=lease.agent_timeout_s,
        ttl_s=lease.ttl_s,
        trains=lease.purpose == trajectory_pb2.PURPOSE_TRAIN,
        verifier_digest=lease.verifier_digest,
        sandbox_limits={field.name: value for field, value in lease.limits.ListFields()},
        regrade=lease.regrade,
    )
