"""A namespace of its own on the real cluster, gone at the end; skips with a reason where there is no cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi, KubeOptions
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

AGENT_IMAGE, BUSYBOX_IMAGE, DEBIAN_IMAGE = (
    f"localhost/longshore/{name}:dev" for name in ("agent", "busybox", "debian")
)


@dataclass(frozen=True)
class Ground:
    """A sandbox namespace as a chart makes it."""

    api: KubeApi
    place: Placement

    @property
    def namespace(self) -> str:
        return self.place.namespace


def kubeconfig() -> str:
    """Of the cluster that `make cluster-up` started."""
    path = os.environ.get("KUBECONFIG", "")
    if not path or not os.path.exists(path):
        pytest.skip("no cluster: run `make cluster-up` (KUBECONFIG names none)")
    return path


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[KubeApi]:
    """A client with the cluster's admin rights."""
    api = await KubeApi.open(KubeOptions(kubeconfig=kubeconfig()))
    try:
        yield api
    finally:
        await api.close()


@contextlib.asynccontextmanager
async def ground() -> AsyncIterator[Ground]:
    """A fresh namespace with Pod Security `baseline` and an owner for its objects."""
    async with opened() as api:
        name = f"sandboxes-{secrets.token_hex(4)}"
        labels = {"pod-security.kubernetes.io/enforce": "baseline"}
        await api.create(
            "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        )
        try:
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
            uid = (await api.create("configmaps", name, owner))["metadata"]["uid"]
            reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
            yield Ground(api, Placement(name, "r1", reference))
        finally:
            await api.delete("namespaces", "", name)
