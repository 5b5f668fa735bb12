"""The gRPC face of the store."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as pb_grpc
from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec
from longshore_trajectory_store.api import mapping, metrics
from longshore_trajectory_store.api.export import json_line
from longshore_trajectory_store.api.waiting import follow_sealed, take_when_ready
from longshore_trajectory_store.domain.batches import TakeRequest
from longshore_trajectory_store.domain.ports import AttemptFilter, GroupFilter, TrajectoryStore

SERVICE = pb.DESCRIPTOR.services_by_name["TrajectoryService"].full_name

_PAGE_DEFAULT = 500
_PAGE_MAX = 2000
_EXPORT_PAGE = 50

Context = grpc.aio.ServicerContext[Any, Any]


class TrajectoryServicer(pb_grpc.TrajectoryServiceServicer):
    """Maps requests to the store. recheck_s: see take_when_ready."""

    def __init__(self, store: TrajectoryStore, clock: Clock, recheck_s: float | None) -> None:
        self._store = store
        self._clock = clock
        self._recheck_s = recheck_s

    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Context) -> pb.CreateGroupResponse:
        group = mapping.group_from_proto(request, self._clock.now_ms())
        stored, created = await self._store.create_group(group, list(request.group.attempt_ids))
        return pb.CreateGroupResponse(group=mapping.group_to_proto(stored), created=created)

    async def Fence(self, request: pb.FenceRequest, context: Context) -> pb.FenceResponse:
        await self._store.fence(request.attempt_id, request.epoch)
        return pb.FenceResponse()

    async def AppendTurn(self, request: pb.AppendTurnRequest, context: Context) -> pb.AppendTurnResponse:
        number = await self._store.append_turn(mapping.turn_from_proto(request.turn))
        return pb.AppendTurnResponse(sequence=number)

    async def Seal(self, request: pb.SealRequest, context: Context) -> pb.SealResponse:
        attempt, group = await self._store.seal(mapping.seal_from_proto(request))
        return pb.SealResponse(attempt=mapping.attempt_to_proto(attempt), group=mapping.group_to_proto(group))

    async def Discard(self, request: pb.DiscardRequest, context: Context) -> pb.DiscardResponse:
        reason = mapping.discard_reason(request.reason)
        return pb.DiscardResponse(discarded=await self._store.discard(list(request.attempt_ids), reason))

    async def GetAttempt(self, request: pb.GetAttemptRequest, context: Context) -> pb.GetAttemptResponse:
        attempt, turns = await self._store.get_attempt(request.attempt_id, request.with_turns)
        messages = await asyncio.to_thread(lambda: [mapping.turn_to_proto(turn) for turn in turns])
        return pb.GetAttemptResponse(attempt=mapping.attempt_to_proto(attempt), turns=messages)

    async def ListAttempts(self, request: pb.ListAttemptsRequest, context: Context) -> pb.ListAttemptsResponse:
        where = AttemptFilter(
            run_id=request.run_id,
            purpose=mapping.any_purpose(request.purpose),
            panel=request.panel,
            group_id=request.group_id,
            state=mapping.any_state(request.state),
        )
        limit = min(_page_size(request.page_size) or _PAGE_DEFAULT, _PAGE_MAX)
        page = await self._store.list_attempts(where, limit, _page_token(request.page_token))
        return pb.ListAttemptsResponse(
            attempts=[mapping.attempt_to_proto(attempt) for attempt in page.items],
            next_page_token=str(page.next_after or ""),
        )

    async def GetGroup(self, request: pb.GetGroupRequest, context: Context) -> pb.GetGroupResponse:
        group, attempts = await self._store.get_group(request.group_id)
        return pb.GetGroupResponse(
            group=mapping.group_to_proto(group), attempts=[mapping.attempt_to_proto(a) for a in attempts]
        )

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        where = GroupFilter(
            run_id=request.run_id,
            purpose=mapping.any_purpose(request.purpose),
            panel=request.panel,
            step=request.step if request.HasField("step") else None,
        )
        limit = _page_size(request.page_size)
        page = await self._store.list_groups(where, limit, _page_token(request.page_token))
        return pb.ListGroupsResponse(
            groups=[mapping.group_to_proto(group) for group in page.items], next_page_token=str(page.next_after or "")
        )

    async def TakeBatch(self, request: pb.TakeBatchRequest, context: Context) -> pb.TakeBatchResponse:
        if not math.isfinite(request.wait_s) or request.wait_s < 0:
            raise InvalidSpec(f"wait_s is {request.wait_s}; seconds, at least 0", field="wait_s")
        take = TakeRequest(
            run_id=request.run_id,
            incarnation=request.incarnation,
            step=request.step,
            max_staleness=request.max_staleness,
            groups=request.groups,
        )
        started = time.monotonic()
        result = await take_when_ready(self._store, take, request.wait_s, self._clock, self._recheck_s)
        metrics.TAKE_WAIT.observe(time.monotonic() - started)
        batch = None if result.batch is None else await asyncio.to_thread(mapping.batch_to_proto, result.batch)
        return pb.TakeBatchResponse(batch=batch, groups_available=result.groups_available, closed=result.closed)

    async def CommitBatch(self, request: pb.CommitBatchRequest, context: Context) -> pb.CommitBatchResponse:
        await self._store.commit_batch(request.run_id, request.incarnation, request.step, request.batch_id)
        return pb.CommitBatchResponse()

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        ledger = list(request.consumed_group_ids)
        released, stale = await self._store.resume_run(request.run_id, request.incarnation, request.step, ledger)
        return pb.ResumeRunResponse(groups_released=released, attempts_stale=stale)

    async def CloseRun(self, request: pb.CloseRunRequest, context: Context) -> pb.CloseRunResponse:
        discarded = await self._store.close_run(request.run_id, request.discard_open)
        return pb.CloseRunResponse(attempts_discarded=discarded)

    async def GetCounts(self, request: pb.GetCountsRequest, context: Context) -> pb.GetCountsResponse:
        counts = await self._store.counts(request.run_id, mapping.any_purpose(request.purpose), request.panel)
        return pb.GetCountsResponse(counts=mapping.counts_to_proto(counts))

    async def WatchSealed(
        self, request: pb.WatchSealedRequest, context: Context
    ) -> AsyncIterator[pb.WatchSealedResponse]:
        async for attempt, group in follow_sealed(self._store, request.run_id, request.after, self._recheck_s):
            yield pb.WatchSealedResponse(attempt=mapping.attempt_to_proto(attempt), group=mapping.group_to_proto(group))

    async def Export(self, request: pb.ExportRequest, context: Context) -> AsyncIterator[pb.ExportResponse]:
        where = AttemptFilter(run_id=request.run_id, purpose=mapping.any_purpose(request.purpose))
        after = 0
        while True:
            page = await self._store.list_attempts(where, _EXPORT_PAGE, after)
            for listed in page.items:
                attempt, turns = await self._store.get_attempt(listed.attempt_id, with_turns=True)
                yield pb.ExportResponse(json_line=await asyncio.to_thread(json_line, attempt, turns))
            if not page.next_after:
                return
            after = page.next_after


def _page_size(size: int) -> int | None:
    if size < 0:
        raise InvalidSpec(f"page_size is {size}; at least 1, or 0 for the default", field="page_size")
    return size or None


def _page_token(token: str) -> int:
    if not token:
        return 0
    if not token.isascii() or not token.isdigit():
        raise InvalidSpec(f"page_token {token!r} is not one that this store gave", field="page_token")
    return int(token)
