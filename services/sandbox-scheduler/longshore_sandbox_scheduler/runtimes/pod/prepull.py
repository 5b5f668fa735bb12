"""Pulls images to all nodes ahead of the pods that need them: a DaemonSet per image, gone once every node has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from longshore_common.digests import digest
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.model import Image
from longshore_sandbox_scheduler.domain.runtime import Removed
from longshore_sandbox_scheduler.runtimes.pod.informer import Informer
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import AGENT, AGENT_FOLDER, PodOptions

log = get_logger(__name__)

COMPONENT = "prepull"
_IMAGES = "longshore.dev/images"
_VOLUME = "longshore-agent"
_TINY = {
    "requests": {"cpu": "1m", "memory": "8Mi", "ephemeral-storage": "1Mi"},
    "limits": {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
}
_SECURITY = {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False, "runAsUser": 0}

Object = dict[str, Any]


@dataclass(frozen=True)
class PrePullOptions:
    """Off, nodes pull an image with the first pod that needs it. Worth its disk where runs share few images."""

    enabled: bool = False
    at_once: int = 2
    """Images pulled at a time; nodes pull one after the other anyway."""
    timeout_s: float = 900.0
    """A DaemonSet that is not done by then is removed: a node is away, or the image cannot be pulled."""


class PrePuller:
    """One per scheduler; replicas share their DaemonSets. Errors are logged: pods pull for themselves."""

    def __init__(self, api: KubeApi, place: Placement, pods: PodOptions, options: PrePullOptions) -> None:
        self._api = api
        self._place = place
        self._pods = pods
        self._options = options
        self._informer = Informer(api, "daemonsets", place.namespace, place.selector(COMPONENT), self._changed)
        self._asked: set[str] = set()
        self._waiting: dict[str, Object] = {}
        self._creating: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to watch. Raises KubeError, TimeoutError."""
        if not self._options.enabled:
            return
        self._watching = asyncio.create_task(self._informer.run())
        async with asyncio.timeout(self._options.timeout_s):
            await self._informer.synced()

    async def stop(self) -> None:
        """DaemonSets under way go on; another replica or the next sweep removes them."""
        tasks = [*self._background, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self, image: Image) -> None:
        """Pulls an image and those of its sidecars, once in this process; returns at once."""
        if not self._options.enabled or not image.reference:
            return
        body = daemon_set(image, self._place, self._pods)
        name = body["metadata"]["name"]
        if name not in self._asked:
            self._asked.add(name)
            self._waiting[name] = body
            self._pump()

    def _pump(self) -> None:
        while self._waiting and len(self._informer.objects.keys() | self._creating) < self._options.at_once:
            name = next(iter(self._waiting))
            self._creating.add(name)
            self._spawn(self._create(name, self._waiting.pop(name)))

    async def _create(self, name: str, body: Object) -> None:
        try:
            await self._api.create("daemonsets", self._place.namespace, body)
        except KubeError as error:
            self._creating.discard(name)
            if error.reason != "AlreadyExists":
                self._asked.discard(name)
                log.warning("an image is not pulled ahead", images=images_of(body), error=error.message)

    def _changed(self, name: str, before: Object | None, now: Object | None) -> None:
        self._creating.discard(name)
        if now is not None and is_done(now) and "deletionTimestamp" not in now["metadata"]:
            log.info("image is on all nodes", images=images_of(now), seconds=round(_age_s(now)))
            self._spawn(self._remove(name, now))
        if now is None:
            self._pump()

    async def _remove(self, name: str, found: Mapping[str, Any]) -> None:
        with contextlib.suppress(KubeError):  # The next sweep tries again.
            await self._api.delete("daemonsets", self._place.namespace, name, uid=found["metadata"]["uid"])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def sweep(self, dry_run: bool = False) -> Sequence[Removed]:
        """Removes what is done, or will not be; also when this scheduler pulls nothing ahead itself."""
        listed = await self._api.list("daemonsets", self._place.namespace, self._place.selector(COMPONENT))
        removed = []
        for one in listed.items:
            why = "all nodes have it" if is_done(one) else ""
            if not why and _age_s(one) > self._options.timeout_s:
                why = f"not done after {self._options.timeout_s:.0f} s"
                log.warning(
                    "an image could not be pulled to all nodes", images=images_of(one), status=one.get("status")
                )
            if why:
                removed.append(Removed("DaemonSet", one["metadata"]["name"], why))
                if not dry_run:
                    await self._remove(one["metadata"]["name"], one)
        return removed


def daemon_set(image: Image, place: Placement, pods: PodOptions) -> Object:
    """Each image runs the agent's `version` once, so that it needs nothing of its own; then a pause of ours waits."""
    references = [image.reference, *dict.fromkeys(one.reference for one in image.sidecars)]
    name = f"longshore-prepull-{digest([references, dict(pods.pod), pods.runtime_class]).removeprefix('sha256:')[:16]}"
    labels = {**pods.labels, **place.labels(COMPONENT), "longshore.dev/prepull": name}
    spec: Object = {
        **pods.pod,
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [
            _container("install", pods.agent_image, ["/longshore-agent", "install", AGENT], pods, read_only=False),
            *(_container(f"image-{i}", one, [AGENT, "version"], pods) for i, one in enumerate(references)),
        ],
        "containers": [_container("wait", pods.agent_image, ["/longshore-agent", "wait"], pods)],
        "volumes": [{"name": _VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}],
    }
    if pods.runtime_class:
        spec["runtimeClassName"] = pods.runtime_class
    selected = {"longshore.dev/prepull": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": labels,
            "annotations": {_IMAGES: " ".join(references)},
            "ownerReferences": [dict(place.owner)],
        },
        "spec": {
            "selector": {"matchLabels": selected},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _container(name: str, image: str, command: Sequence[str], pods: PodOptions, read_only: bool = True) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pods.image_pull_policy,
        "command": list(command),
        "resources": _TINY,
        "securityContext": _SECURITY,
        "volumeMounts": [{"name": _VOLUME, "mountPath": AGENT_FOLDER, "readOnly": read_only}],
    }


def is_done(found: Mapping[str, Any]) -> bool:
    """Whether every node that it is for has run its containers."""
    status = found.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    current = status.get("observedGeneration", 0) >= found["metadata"].get("generation", 1)
    return bool(current and wanted and status.get("numberReady", 0) >= wanted)


def images_of(found: Mapping[str, Any]) -> str:
    """What it pulls, for people."""
    return str((found["metadata"].get("annotations") or {}).get(_IMAGES, ""))


def _age_s(found: Mapping[str, Any], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float:
    born = datetime.fromisoformat(found["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    return (now() - born).total_seconds()
