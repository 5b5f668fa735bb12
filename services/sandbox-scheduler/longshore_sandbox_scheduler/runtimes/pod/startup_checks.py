"""What must hold before the first sandbox: the scheduler's rights, and a RuntimeClass that is what it says."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_common.errors import Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.runtime import Removed
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi, Object
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

log = get_logger(__name__)

PROBE_COMPONENT = "runtime-probe"

BASE_RIGHTS: Mapping[str, Sequence[str]] = {
    "pods": ("create", "get", "list", "watch", "patch", "delete"),
    "pods/log": ("get",),
    "configmaps": ("create", "get", "patch"),
    "networkpolicies": ("create", "get", "list", "patch", "delete"),
    "leases": ("create", "get", "update"),
}
EGRESS_RIGHTS: Mapping[str, Sequence[str]] = {
    "services": ("create", "get", "list", "patch", "delete"),
    "deployments": ("create", "get", "list", "patch", "delete"),
}
PREPULL_RIGHTS: Mapping[str, Sequence[str]] = {"daemonsets": ("create", "get", "list", "delete")}
EXEC_RIGHTS: Mapping[str, Sequence[str]] = {"pods/exec": ("create", "get")}
"""A WebSocket starts with a GET; which verb a server asks for depends on its version."""


async def check_rights(api: KubeApi, namespace: str, *rights: Mapping[str, Sequence[str]]) -> None:
    """Asks the API server itself, for each verb, whether we may.

    Raises:
        Unavailable: not retryable; names every missing right.
    """
    wanted = [(verb, kind) for one in rights for kind, verbs in one.items() for verb in verbs]
    allowed = await asyncio.gather(*(_may(api, namespace, verb, kind) for verb, kind in wanted))
    missing = [f"{verb} {kind}" for (verb, kind), may in zip(wanted, allowed, strict=True) if not may]
    if missing:
        raise Unavailable(
            f"the scheduler's account may not do what it must in namespace {namespace}: {', '.join(missing)}; "
            "give it the role of deploy/",
            details={"missing": ",".join(missing)},
            retryable=False,
        )


async def _may(api: KubeApi, namespace: str, verb: str, kind: str) -> bool:
    resource, _, subresource = kind.partition("/")
    group = api.group(resource)
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
    }
    answer = await api.create("selfsubjectaccessreviews", "", review)
    return bool(answer.get("status", {}).get("allowed"))


async def check_image_volumes(api: KubeApi, place: Placement, agent_image: str) -> None:
    """Asks for a pod with an image volume without making it: a server without them takes the pod and drops the volume.

    Raises:
        Unavailable: not retryable.
    """
    container = {"name": "main", "image": agent_image, "securityContext": {"allowPrivilegeEscalation": False}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "image-volume-check", "namespace": place.namespace},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{**container, "volumeMounts": [{"name": "agent", "mountPath": "/agent"}]}],
            "volumes": [{"name": "agent", "image": {"reference": agent_image}}],
        },
    }
    why = "drops the volume"
    try:
        taken = await api.create("pods", place.namespace, pod, dry_run=True)
        if any("image" in volume for volume in taken["spec"].get("volumes") or ()):
            return
    except KubeError as error:
        why = error.message
    raise Unavailable(
        f"this API server has no image volumes ({why}); they are on from Kubernetes 1.35: set agent_by_image_volume to "
        "false, and the agent is copied by an init container",
        retryable=False,
    )


@dataclass(frozen=True)
class RuntimeClassOptions:
    """How a RuntimeClass is tried out."""

    name: str
    agent_image: str
    image_pull_policy: str = "IfNotPresent"
    shares_kernel: bool = False
    """True: it is meant to run on the node's own kernel (crun, a device runtime); only that it runs is checked."""
    timeout_s: float = 60.0
    pod: Mapping[str, Any] = field(default_factory=dict)
    """As for sandboxes: nodeSelector, tolerations, imagePullSecrets."""


async def check_runtime_class(api: KubeApi, place: Placement, options: RuntimeClassOptions) -> str:
    """Runs a pod under the class, and one beside it without; the kernel that the first one saw.

    A sandboxed runtime (gVisor, Kata) shows a kernel of its own. One that shows the node's kernel is runc under
    another name, and would give tasks less isolation than the operator believes.

    Raises:
        Unavailable: not retryable; the class does not exist, does not start pods, or does not isolate.
    """
    name = f"longshore-runtime-probe-{secrets.token_hex(4)}"
    pods = (f"{name}-held", f"{name}-plain")
    try:
        async with asyncio.timeout(options.timeout_s):
            held, node = await _kernel(api, place, pods[0], options, {"runtimeClassName": options.name})
            if options.shares_kernel:
                return held
            # On the same node, past the scheduler: the class may have picked a node with taints.
            plain, _ = await _kernel(api, place, pods[1], options, {"nodeName": node})
    except TimeoutError:
        why = await _why_not(api, place.namespace, pods)
        raise _unusable(options, f"its pod did not run within {options.timeout_s:.0f} s{why}") from None
    finally:
        await asyncio.shield(_remove(api, place.namespace, pods))
    if held == plain:
        raise _unusable(
            options,
            f"its pods see the node's own kernel ({held}), as under runc: its handler is not a sandbox; if that is "
            "meant, set runtime_class_shares_kernel",
        )
    log.info("sandboxes run under a kernel of their own", runtime_class=options.name, kernel=held, node_kernel=plain)
    return held


async def _kernel(
    api: KubeApi, place: Placement, name: str, options: RuntimeClassOptions, extra: Mapping[str, Any]
) -> tuple[str, str]:
    """What the agent of a new pod says of its kernel, and the pod's node."""
    try:
        made = await api.create("pods", place.namespace, _probe_pod(place, name, options, extra))
    except KubeError as error:
        raise _unusable(options, error.message) from error
    done = await _finished(api, made)
    if done["status"]["phase"] != "Succeeded":
        raise _unusable(options, f"its pod failed: {_states(done)}")
    text = (await api.log(place.namespace, name)).strip()
    if not text:
        raise _unusable(options, "its pod did not say which kernel it runs on")
    return text, str(done["spec"].get("nodeName", ""))


async def _finished(api: KubeApi, pod: Object) -> Object:
    """The pod once it has ended; by a watch from its creation on."""
    metadata = pod["metadata"]
    selector = f"{_PROBE_NAME}={metadata['name']}"
    async for event in api.watch("pods", metadata["namespace"], selector, metadata["resourceVersion"]):
        found: Object = event["object"]
        if event["type"] == "DELETED":
            raise Unavailable(f"probe pod {metadata['name']} was deleted", retryable=False)
        if found.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return found
    raise Unavailable(f"the watch of probe pod {metadata['name']} ended")


_PROBE_NAME = "longshore.dev/probe-pod"


def _probe_pod(place: Placement, name: str, options: RuntimeClassOptions, extra: Mapping[str, Any]) -> Object:
    container = {
        "name": "kernel",
        "image": options.agent_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["/longshore-agent", "kernel"],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": {**place.labels(PROBE_COMPONENT), _PROBE_NAME: name},
            "ownerReferences": [dict(place.owner)],
        },
        "spec": {
            **options.pod,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": max(1, int(options.timeout_s)),
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            **extra,
        },
    }


async def _why_not(api: KubeApi, namespace: str, pods: Collection[str]) -> str:
    """What the kubelet says of pods that do not start: a missing handler is an event, not a status."""
    try:
        events = await api.list("events", namespace, fields="type=Warning,involvedObject.kind=Pod")
    except KubeError:
        return ""
    said = [one for one in events.items if one["involvedObject"].get("name") in pods]
    return f": {said[-1].get('message', '')}" if said else ""


def _states(pod: Object) -> str:
    status = pod["status"]
    for one in status.get("containerStatuses") or ():
        if terminated := one.get("state", {}).get("terminated"):
            return f"{terminated.get('reason')} (status {terminated.get('exitCode')}) {terminated.get('message', '')}"
    return f"{status.get('reason', '')} {status.get('message', '')}".strip() or str(status.get("phase"))


def _unusable(options: RuntimeClassOptions, why: str) -> Unavailable:
    return Unavailable(f"RuntimeClass {options.name!r} cannot be used for sandboxes: {why}", retryable=False)


async def _remove(api: KubeApi, namespace: str, pods: Collection[str]) -> None:
    for name in pods:
        try:
            await api.delete("pods", namespace, name, grace_s=0)
        except KubeError as error:
            log.warning("a runtime probe was left for the sweep", pod=name, error=error.message)


async def sweep_probes(api: KubeApi, place: Placement, dry_run: bool = False) -> list[Removed]:
    """Removes probe pods of schedulers that died at their start."""
    found = await api.list("pods", place.namespace, place.selector(PROBE_COMPONENT))
    # Their own deadline ends them, so one that has not ended may be another scheduler's.
    ended = [pod["metadata"]["name"] for pod in found.items if pod["status"].get("phase") in ("Succeeded", "Failed")]
    if not dry_run:
        await _remove(api, place.namespace, ended)
    return [Removed("Pod", name, "a start-up probe that ended") for name in ended]
