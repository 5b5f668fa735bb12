"""A scheduler on the real cluster, in a sandbox namespace of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scheduler_world import World, start_world

from longshore_sandbox_scheduler.runtimes.pod.assembly import PodSettings
from longshore_sandbox_scheduler.runtimes.pod.images import ImageOptions
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi, KubeOptions
from longshore_sandbox_scheduler.runtimes.pod.network import NetworkOptions
from longshore_sandbox_scheduler.runtimes.pod.network_policy import Peer, PolicyOptions
from longshore_sandbox_scheduler.runtimes.pod.network_probe import ProbeOptions

AGENT_IMAGE = "localhost/longshore/agent:dev"
DEBIAN_IMAGE = "localhost/longshore/debian:dev"
GATEWAY = "10.244.0.1"
"""The node's own address on the pod bridge, where a test's gateway listens."""


def require_cluster() -> str:
    """The kubeconfig of the test cluster; skips where it is not up."""
    path = os.environ.get("KUBECONFIG", "")
    if not path or not Path(path).exists():
        pytest.skip("no test cluster: make cluster-up, then make test-cluster")
    return path


@asynccontextmanager
async def namespace(kubeconfig: str, **labels: str) -> AsyncIterator[tuple[KubeApi, str]]:
    """A fresh namespace with Pod Security baseline; gone afterwards."""
    api = await KubeApi.open(KubeOptions(kubeconfig))
    name = f"sandboxes-{secrets.token_hex(4)}"
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "baseline", **labels}},
    }
    await api.create("namespaces", "", body)
    try:
        yield api, name
    finally:
        await api.delete("namespaces", "", name)
        await api.close()


def pod_settings(kubeconfig: str, name: str, **changes: Any) -> PodSettings:
    """Settings for a two-core node: pods request little of what they may use."""
    values: dict[str, Any] = {
        "namespace": name,
        "release": "test",
        "kube": KubeOptions(kubeconfig),
        "agent_image": AGENT_IMAGE,
        "image_pull_policy": "IfNotPresent",
        "cpu_request": 0.01,
        "memory_request": 0.05,
        "images": ImageOptions(bases={"longshore/base": DEBIAN_IMAGE}),
        "network": NetworkOptions(
            policy=PolicyOptions(gateway=(Peer(cidr=f"{GATEWAY}/32"),), gateway_port=7403, callers=()),
            probe=ProbeOptions(image=AGENT_IMAGE),
        ),
    }
    return PodSettings(**{**values, **changes})


@asynccontextmanager
async def start_pod_world(
    data_dir: Path, cache_dir: Path, pods: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[World]:
    """A scheduler over pods of a namespace of its own."""
    kubeconfig = require_cluster()
    async with namespace(kubeconfig) as (_, name):
        settings = pod_settings(kubeconfig, name, **(pods or {}))
        async with start_world(data_dir, cache_dir, runtime="pod", pods=settings, secret="test", **changes) as world:
            yield world
