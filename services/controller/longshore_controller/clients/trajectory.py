"""The trajectory store over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc.aio

from longshore.common.v1 import outcome_pb2 as common
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as rpc
from longshore_common.grpc_client import mapped_stream
from longshore_controller.clients.convert import (
    counts_from_proto,
    failure_to_proto,
    group_from_proto,
    group_to_proto,
    outcome_kind,
    purpose_to_proto,
    result_from_proto,
    sealed_from_proto,
)
from longshore_controller.domain.evaluation import AttemptResult
from longshore_controller.domain.planner import GroupPlan
from longshore_controller.domain.records import AttemptCounts, GroupInfo, SealedAttempt
from longshore_controller.domain.vocabulary import OutcomeKind, Purpose

_PAGE = 1000


class GrpcTrajectory:
    """`Trajectory`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.TrajectoryServiceStub(channel)

    async def create_group(self, plan: GroupPlan) -> None:
        await self._stub.CreateGroup(group_to_proto(plan))

    async def fence(self, attempt_id: str, epoch: int) -> None:
        await self._stub.Fence(pb.FenceRequest(attempt_id=attempt_id, epoch=epoch))

    async def seal_failed(self, attempt_id: str, epoch: int, failure: str, evidence: str) -> None:
        outcome = common.Outcome(failed=common.Failed(failure=failure_to_proto(failure), evidence=evidence))
        await self._stub.Seal(pb.SealRequest(attempt_id=attempt_id, lease_epoch=epoch, outcome=outcome))

    async def list_groups(self, run_id: str, purpose: Purpose, panel: str = "") -> list[GroupInfo]:
        request = pb.ListGroupsRequest(run_id=run_id, purpose=purpose_to_proto(purpose), panel=panel)
        return [group_from_proto(group) for group in (await self._stub.ListGroups(request)).groups]

    async def open_attempts(self, group_id: str) -> set[str]:
        answer = await self._stub.GetGroup(pb.GetGroupRequest(group_id=group_id))
        return {attempt.attempt_id for attempt in answer.attempts if attempt.state == pb.ATTEMPT_STATE_OPEN}

    async def results(self, run_id: str, panel: str) -> list[AttemptResult]:
        results: list[AttemptResult] = []
        token = ""
        while True:
            request = pb.ListAttemptsRequest(
                run_id=run_id,
                purpose=pb.PURPOSE_EVAL,
                panel=panel,
                state=pb.ATTEMPT_STATE_SEALED,
                page_size=_PAGE,
                page_token=token,
            )
            answer = await self._stub.ListAttempts(request)
            kept = (a for a in answer.attempts if outcome_kind(a.outcome) is not OutcomeKind.DISCARDED)
            results += [result_from_proto(attempt) for attempt in kept]
            token = answer.next_page_token
            if not token:
                return results

    async def counts(self, run_id: str, purpose: Purpose) -> AttemptCounts:
        request = pb.GetCountsRequest(run_id=run_id, purpose=purpose_to_proto(purpose))
        return counts_from_proto((await self._stub.GetCounts(request)).counts)

    async def close_run(self, run_id: str, discard_open: bool) -> None:
        await self._stub.CloseRun(pb.CloseRunRequest(run_id=run_id, discard_open=discard_open))

    async def discard_surplus(self, attempt_ids: Sequence[str]) -> None:
        request = pb.DiscardRequest(attempt_ids=attempt_ids, reason=common.DISCARD_REASON_SURPLUS)
        await self._stub.Discard(request)

    async def watch_sealed(self, run_id: str, after: int) -> AsyncIterator[SealedAttempt]:
        async for message in mapped_stream(self._stub.WatchSealed(pb.WatchSealedRequest(run_id=run_id, after=after))):
            yield sealed_from_proto(message)
