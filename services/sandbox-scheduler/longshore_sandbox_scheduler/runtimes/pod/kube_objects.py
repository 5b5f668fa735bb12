"""`ClusterObjects` over the Kubernetes API."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError, as_domain_error

T = TypeVar("T")

_PLURALS = {
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "Lease": "leases",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "Pod": "pods",
    "ResourceQuota": "resourcequotas",
    "Service": "services",
}


class KubeObjects:
    """Objects of one namespace, errors as the one tree has them."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    async def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._api.get(kind, self.namespace, name)
        except KubeError as error:
            if error.status == 404:
                return None
            raise as_domain_error(error) from error

    async def list(self, kind: str, namespace: str, selector: str = "") -> Sequence[Mapping[str, Any]]:
        return (await _mapped(self._api.list(kind, namespace, selector))).items

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await _mapped(self._api.create(_PLURALS[body["kind"]], self.namespace, body))

    async def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await _mapped(self._api.patch(kind, self.namespace, name, body))

    async def delete(self, kind: str, name: str, *, resource_version: str = "", grace_s: int | None = None) -> bool:
        return await _mapped(self._api.delete(kind, self.namespace, name, version=resource_version, grace_s=grace_s))

    async def log(self, kind: str, name: str) -> str:
        return await _mapped(self._api.log(self.namespace, name))


async def _mapped(work: Awaitable[T]) -> T:
    try:
        return await work
    except KubeError as error:
        raise as_domain_error(error) from error
