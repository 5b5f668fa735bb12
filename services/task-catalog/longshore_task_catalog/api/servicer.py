"""longshore.catalog.v1.CatalogService."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from longshore.catalog.v1 import catalog_pb2 as pb
from longshore.catalog.v1 import catalog_pb2_grpc as pb_grpc
from longshore_task_catalog.api import metrics
from longshore_task_catalog.api.mapping import (
    STATES,
    dataset_proto,
    finding_proto,
    page_token,
    parse_page_token,
    probe_proto,
    task_proto,
)
from longshore_task_catalog.domain.catalog import Catalog

SERVICE = "longshore.catalog.v1.CatalogService"


class CatalogServicer(pb_grpc.CatalogServiceServicer):
    """Proto <-> domain. Errors of the tree are mapped by the server."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def ImportTask(self, request: pb.ImportTaskRequest, context: Any) -> pb.ImportTaskResponse:
        result = await self._catalog.import_task(request.bundle_tar_zst, request.name, request.source, request.dry_run)
        if not request.dry_run:
            metrics.IMPORTS.labels("created" if result.created else "known").inc()
        return pb.ImportTaskResponse(
            task=task_proto(result.task) if result.task else None,
            created=result.created,
            findings=[finding_proto(finding) for finding in result.findings],
        )

    async def GetTask(self, request: pb.GetTaskRequest, context: Any) -> pb.GetTaskResponse:
        return pb.GetTaskResponse(task=task_proto(await self._catalog.get_task(request.task)))

    async def ListTasks(self, request: pb.ListTasksRequest, context: Any) -> pb.ListTasksResponse:
        after = parse_page_token(request.page_token)
        page = await self._catalog.list_tasks(request.dataset, request.split, after, request.page_size)
        tasks = [task_proto(task) for task in page.tasks]
        return pb.ListTasksResponse(tasks=tasks, next_page_token=page_token(page.next_after))

    async def GetBundle(self, request: pb.GetBundleRequest, context: Any) -> pb.GetBundleResponse:
        return pb.GetBundleResponse(bundle_tar_zst=await self._catalog.get_bundle(request.digest))

    async def FreezeDataset(self, request: pb.FreezeDatasetRequest, context: Any) -> pb.FreezeDatasetResponse:
        splits = [(split.name, list(split.task_digests)) for split in request.splits]
        dataset, created = await self._catalog.freeze(request.name, splits)
        return pb.FreezeDatasetResponse(dataset=dataset_proto(dataset), created=created)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: Any) -> pb.GetDatasetResponse:
        return pb.GetDatasetResponse(dataset=dataset_proto(await self._catalog.get_dataset(request.name)))

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: Any) -> pb.ListDatasetsResponse:
        found = await self._catalog.list_datasets()
        return pb.ListDatasetsResponse(datasets=[dataset_proto(dataset) for dataset in found])

    async def ProbeTasks(self, request: pb.ProbeTasksRequest, context: Any) -> AsyncIterator[pb.ProbeTasksResponse]:
        results = self._catalog.probe(list(request.digests), request.repeats, request.concurrency, request.force)
        async for result in results:
            metrics.PROBES.labels(result.state.value, str(result.cached).lower()).inc()
            yield probe_proto(result)

    async def RecordReference(self, request: pb.RecordReferenceRequest, context: Any) -> pb.RecordReferenceResponse:
        state = await self._catalog.record_reference(
            request.digest, list(request.rewards), request.token_exact, request.reference
        )
        metrics.REFERENCES.labels(state.value).inc()
        return pb.RecordReferenceResponse(state=STATES[state])
