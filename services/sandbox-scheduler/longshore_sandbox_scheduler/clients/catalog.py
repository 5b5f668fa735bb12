"""The task catalog over gRPC."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

import grpc.aio

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore_common.errors import InvalidSpec
from longshore_common.grpc_client import open_channel
from longshore_sandbox_scheduler.domain.model import Limits, Network, NetworkClass, TaskEnvironment

_REMEMBERED = 4096


class GrpcTasks:
    """`domain.ports.Tasks`. A digest's content never changes, so environments are remembered."""

    def __init__(self, address: str, secret: str, default_build_timeout_s: float) -> None:
        self._channel: grpc.aio.Channel = open_channel(address, secret)
        self._stub = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self._default_build_timeout_s = default_build_timeout_s
        self._known: OrderedDict[str, TaskEnvironment] = OrderedDict()

    async def environment(self, task_digest: str) -> TaskEnvironment:
        if task_digest not in self._known:
            answer = await self._stub.GetTask(catalog_pb2.GetTaskRequest(task=task_digest))
            self._known[task_digest] = self._environment(answer.task)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[task_digest]

    def _environment(self, task: catalog_pb2.Task) -> TaskEnvironment:
        limits = Limits(
            cpus=task.limits.cpus, memory_mb=int(task.limits.memory_mb), storage_mb=int(task.limits.storage_mb)
        )
        return TaskEnvironment(
            digest=task.digest,
            environment_digest=task.environment_digest,
            limits=limits,
            build_timeout_s=task.limits.build_timeout_s or self._default_build_timeout_s,
            workdir=task.workdir,
            docker_image=task.docker_image,
            network=_network(task),
        )

    async def bundle(self, task_digest: str) -> bytes:
        answer = await self._stub.GetBundle(catalog_pb2.GetBundleRequest(digest=task_digest))
        return bytes(answer.bundle_tar_zst)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


def _network(task: catalog_pb2.Task) -> Network | None:
    """What the task asks for; None: it does not say. Raises InvalidSpec naming the task."""
    if not task.network_mode:
        return None
    where = f"task {task.name or task.digest}: [environment].network_mode"
    try:
        kind = NetworkClass(task.network_mode)
    except ValueError as error:
        raise InvalidSpec(f"{where} {task.network_mode!r} is not known here", field="network") from error
    cidrs = [host for host in task.allowed_hosts if _is_cidr(host)]
    hosts = [host for host in task.allowed_hosts if host not in cidrs]
    try:
        return Network(kind, tuple(cidrs), tuple(hosts))
    except InvalidSpec as error:
        raise InvalidSpec(f"{where}: {error.message}", field=error.field) from error


def _is_cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
