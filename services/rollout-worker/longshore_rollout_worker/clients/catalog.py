"""Where and as whom an agent works on a task, from the catalog; content-locked, so kept by digest."""

from collections import OrderedDict

import grpc.aio

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore_rollout_worker.domain.ports import TaskInfo

_KEPT = 10_000


class GrpcCatalog:
    """Implements domain.ports.Catalog."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        self._tasks: OrderedDict[str, TaskInfo] = OrderedDict()

    async def task(self, digest: str) -> TaskInfo:
        if digest not in self._tasks:
            found = (await self._stub.GetTask(catalog_pb2.GetTaskRequest(task=digest))).task
            self._tasks[digest] = TaskInfo(found.workdir, found.agent_user)
            while len(self._tasks) > _KEPT:
                self._tasks.popitem(last=False)
        return self._tasks[digest]
