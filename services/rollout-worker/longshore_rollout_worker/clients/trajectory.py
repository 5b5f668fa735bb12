"""Outcomes to the trajectory store."""

import grpc.aio

from longshore.common.v1 import outcome_pb2
from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore_rollout_worker.clients.outcome import sampling_proto, termination_proto
from longshore_rollout_worker.domain.ports import Identity, Seal


class GrpcTrajectory:
    """Implements domain.ports.Trajectory."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = trajectory_pb2_grpc.TrajectoryServiceStub(channel)

    async def seal(self, seal: Seal) -> None:
        scored = outcome_pb2.Scored(reward=seal.reward, termination=termination_proto(seal.termination))
        request = trajectory_pb2.SealRequest(
            attempt_id=seal.key.attempt_id,
            lease_epoch=seal.key.epoch,
            outcome=outcome_pb2.Outcome(scored=scored),
            reward=seal.record,
            identity=_identity(seal.identity),
            start_version=seal.start_version,
            agent_s=seal.agent_s,
            verifier_s=seal.verifier_s,
            sandbox_id=seal.sandbox_id,
        )
        await self._stub.Seal(request)


def _identity(identity: Identity) -> trajectory_pb2.AttemptIdentity:
    return trajectory_pb2.AttemptIdentity(
        task_digest=identity.task_digest,
        harness_name=identity.harness_name,
        harness_version=identity.harness_version,
        harness_config_digest=identity.harness_config_digest,
        base_digest=identity.base_digest,
        tokenizer_digest=identity.tokenizer_digest,
        template_digest=identity.template_digest,
        sampling=sampling_proto(identity.sampling, with_seed=False),
        policy_alias=identity.policy_alias,
        image_digest=identity.image_digest,
        limits_digest=identity.limits_digest,
        verifier_digest=identity.verifier_digest,
    )
