"""longshore.controller.v1.ControllerService."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

from longshore.controller.v1 import controller_pb2 as pb
from longshore.controller.v1 import controller_pb2_grpc as rpc
from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec
from longshore_controller.api.convert import (
    artifact_header,
    artifact_to_proto,
    event_to_proto,
    failure_name,
    lease_to_proto,
    ref_from_proto,
    ref_to_proto,
    run_to_proto,
    step_from_proto,
)
from longshore_controller.application.artifacts import ArtifactService
from longshore_controller.application.leasing import Failure, LeaseService
from longshore_controller.application.manager import RunManager
from longshore_controller.application.queries import RunQueries
from longshore_controller.application.reporting import ReportService
from longshore_controller.application.steps import StepService
from longshore_controller.application.submission import SubmissionService
from longshore_controller.application.watching import EventWatcher

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class Application:
    """Everything that both faces, gRPC and REST, call."""

    submission: SubmissionService
    queries: RunQueries
    manager: RunManager
    leases: LeaseService
    steps: StepService
    watcher: EventWatcher
    reports: ReportService
    artifacts: ArtifactService
    clock: Clock


class ControllerServicer(rpc.ControllerServiceServicer):
    """Translates; errors of the tree are mapped by the server."""

    def __init__(self, application: Application) -> None:
        self._app = application

    async def SubmitRun(self, request: pb.SubmitRunRequest, context: Context) -> pb.SubmitRunResponse:
        run, created = await self._app.submission.submit(request.spec_yaml, request.dry_run, request.idempotency_key)
        return pb.SubmitRunResponse(run=run_to_proto(run), created=created)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        run, counts = await self._app.queries.get(request.run)
        return pb.GetRunResponse(run=run_to_proto(run, counts))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        runs, token = await self._app.queries.page(request.page_size, request.page_token)
        return pb.ListRunsResponse(runs=[run_to_proto(run) for run in runs], next_page_token=token)

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        return pb.StopRunResponse(run=run_to_proto(await self._app.manager.stop(request.run, request.reason)))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        return pb.ResumeRunResponse(run=run_to_proto(await self._app.manager.resume(request.run)))

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        async for event in self._app.watcher.watch(request.run, request.after, request.until_done):
            yield pb.WatchEventsResponse(event=event_to_proto(event))

    async def GetReport(self, request: pb.GetReportRequest, context: Context) -> pb.GetReportResponse:
        return pb.GetReportResponse(report_json=await self._app.reports.report_json(request.run))

    async def LeaseAttempts(self, request: pb.LeaseAttemptsRequest, context: Context) -> pb.LeaseAttemptsResponse:
        leases = await self._app.leases.lease(request.worker_id, max(request.max, 1), request.wait_s)
        return pb.LeaseAttemptsResponse(leases=[lease_to_proto(lease) for lease in leases])

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        refs = [ref_from_proto(ref) for ref in request.leases]
        verdict = await self._app.leases.heartbeat(request.worker_id, refs)
        return pb.HeartbeatResponse(
            lost=[ref_to_proto(ref) for ref in verdict.lost],
            cancelled=[ref_to_proto(ref) for ref in verdict.cancelled],
        )

    async def Complete(self, request: pb.CompleteRequest, context: Context) -> pb.CompleteResponse:
        failure = None
        if request.HasField("retry"):
            failure = Failure(failure_name(request.retry.failure), request.retry.evidence)
        will_retry = await self._app.leases.complete(request.worker_id, ref_from_proto(request.lease), failure)
        return pb.CompleteResponse(will_retry=will_retry)

    async def ReportStep(self, request: pb.ReportStepRequest, context: Context) -> pb.ReportStepResponse:
        record = step_from_proto(request, self._app.clock.now_ms())
        return pb.ReportStepResponse(stop=await self._app.steps.report(record))

    async def PutArtifact(
        self, requests: AsyncIterator[pb.PutArtifactRequest], context: Context
    ) -> pb.PutArtifactResponse:
        first = await anext(aiter(requests), pb.PutArtifactRequest())
        if not first.HasField("header"):
            raise InvalidSpec("PutArtifact: the first message must be the header", field="header")

        async def data() -> AsyncIterator[bytes]:
            async for request in requests:
                yield request.data

        artifact, changed = await self._app.artifacts.put(artifact_header(first.header), data())
        return pb.PutArtifactResponse(artifact=artifact_to_proto(artifact), changed=changed)

    async def ListArtifacts(self, request: pb.ListArtifactsRequest, context: Context) -> pb.ListArtifactsResponse:
        found = await self._app.artifacts.listed()
        return pb.ListArtifactsResponse(artifacts=[artifact_to_proto(one) for one in found])

    async def RemoveArtifact(self, request: pb.RemoveArtifactRequest, context: Context) -> pb.RemoveArtifactResponse:
        await self._app.artifacts.remove(request.name)
        return pb.RemoveArtifactResponse()
