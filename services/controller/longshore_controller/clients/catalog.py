"""The task catalog over gRPC."""

from __future__ import annotations

import grpc.aio

from longshore.catalog.v1 import catalog_pb2 as pb
from longshore.catalog.v1 import catalog_pb2_grpc as rpc
from longshore_common.errors import NotFound
from longshore_controller.clients.convert import dataset_from_proto, task_from_proto
from longshore_controller.domain.plan import CatalogDataset, CatalogTask

_PAGE = 500


class GrpcCatalog:
    """`Catalog`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.CatalogServiceStub(channel)

    async def dataset(self, name: str) -> CatalogDataset:
        try:
            answer = await self._stub.GetDataset(pb.GetDatasetRequest(name=name))
        except NotFound as error:
            known = [item.name for item in (await self._stub.ListDatasets(pb.ListDatasetsRequest())).datasets]
            listed = ", ".join(sorted(known)) or "none; freeze one with: longshore task freeze"
            raise NotFound(f"no dataset '{name}' is frozen in the catalog; there are: {listed}") from error
        return dataset_from_proto(answer.dataset)

    async def tasks(self, dataset: str) -> list[CatalogTask]:
        tasks: list[CatalogTask] = []
        token = ""
        while True:
            request = pb.ListTasksRequest(dataset=dataset, page_size=_PAGE, page_token=token)
            answer = await self._stub.ListTasks(request)
            tasks += [task_from_proto(task) for task in answer.tasks]
            token = answer.next_page_token
            if not token:
                return tasks
