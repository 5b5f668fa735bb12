"""The scheduler refuses to start with too few rights, or with a RuntimeClass that is not what it says."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from real_cluster import AGENT_IMAGE, Ground, ground

from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.runtimes.pod import startup_checks
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.startup_checks import (
    BASE_RIGHTS,
    EXEC_RIGHTS,
    PROBE_COMPONENT,
    RuntimeClassOptions,
    check_rights,
    check_runtime_class,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place() -> AsyncIterator[Ground]:
    async with ground() as made:
        yield made


@contextlib.asynccontextmanager
async def runtime_class(api: KubeApi, handler: str) -> AsyncIterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler}
    await api.create("runtimeclasses", "", body)
    try:
        yield name
    finally:
        await api.delete("runtimeclasses", "", name)


def options(name: str, **more: Any) -> RuntimeClassOptions:
    return RuntimeClassOptions(name, AGENT_IMAGE, **more)


async def left(place: Ground) -> set[str]:
    found = await place.api.list("pods", place.namespace, place.place.selector(PROBE_COMPONENT))
    return {pod["metadata"]["name"] for pod in found.items if "deletionTimestamp" not in pod["metadata"]}


async def test_a_class_that_is_runc_under_another_name_is_refused(place: Ground) -> None:
    async with runtime_class(place.api, "runc") as name:
        with pytest.raises(Unavailable, match=f"{name}.*the node's own kernel") as refused:
            await check_runtime_class(place.api, place.place, options(name))
        assert not refused.value.retryable
        assert (await check_runtime_class(place.api, place.place, options(name, shares_kernel=True))).startswith(
            "Linux"
        )
    assert not await left(place)


async def test_a_class_without_a_handler_is_refused_and_the_nodes_words_are_told(place: Ground) -> None:
    async with runtime_class(place.api, "no-such-handler") as name:
        with pytest.raises(Unavailable, match='no runtime for "no-such-handler"'):
            await check_runtime_class(place.api, place.place, options(name, timeout_s=15))
    assert not await left(place)


async def test_a_class_that_does_not_exist_is_refused(place: Ground) -> None:
    with pytest.raises(Unavailable, match="gvisor-of-nowhere"):
        await check_runtime_class(place.api, place.place, options("gvisor-of-nowhere"))


async def test_a_kernel_of_its_own_is_what_is_asked_for(place: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sandboxed runtime can run here: its kernel is made up, all else is real."""
    really = startup_checks._kernel

    async def kernel(api: Any, of: Any, name: str, chosen: Any, extra: Any) -> tuple[str, str]:
        found, node = await really(api, of, name, chosen, extra)
        return ("Linux 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016" if "runtimeClassName" in extra else found), node

    monkeypatch.setattr(startup_checks, "_kernel", kernel)
    async with runtime_class(place.api, "runc") as name:
        assert "4.4.0" in await check_runtime_class(place.api, place.place, options(name))


async def test_missing_rights_are_all_named(place: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_rights(place.api, place.namespace, BASE_RIGHTS, EXEC_RIGHTS)
    really = place.api.create

    async def as_a_pod(kind: str, namespace: str, body: Any, **more: Any) -> Any:
        """The same question about a service account that may do nothing: SubjectAccessReview."""
        spec = {**body["spec"], "user": f"system:serviceaccount:{place.namespace}:default"}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return await really("subjectaccessreviews", namespace, body, **more)

    monkeypatch.setattr(place.api, "create", as_a_pod)
    with pytest.raises(Unavailable) as refused:
        await check_rights(place.api, place.namespace, {"pods": ("create", "watch")}, EXEC_RIGHTS)
    assert refused.value.details["missing"] == "create pods,watch pods,create pods/exec,get pods/exec"
    assert not refused.value.retryable
