"""The pod of a template, as a dict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_sandbox_scheduler.domain.model import Image, Limits, NetworkClass, Sidecar, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement
from longshore_sandbox_scheduler.runtimes.pod.reasons import MAIN

COMPONENT = "sandbox"
STATE = "longshore.dev/state"
TEMPLATE = "longshore.dev/template"
WARM, CLAIMED = "warm", "claimed"
RUN, ATTEMPT, TASK, KEY, CLAIMED_AT = (
    f"longshore.dev/{name}" for name in ("run", "attempt", "task", "claim-key", "claimed-at")
)
AGENT_PORT = 7409
AGENT_FOLDER = "/.longshore/agent"
AGENT = f"{AGENT_FOLDER}/longshore-agent"
_VOLUME = "longshore-agent"
_AGENT_SIZE = "64Mi"
KEPT_CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""What Pod Security baseline allows and package managers, su and daemons in task images need; no MKNOD."""


@dataclass(frozen=True)
class PodOptions:
    """How pods of sandboxes are made."""

    agent_image: str
    """Image of the in-sandbox agent."""
    agent_public_key: str
    """Of the tokens that agents accept; base64 of the raw key."""
    agent_by_image_volume: bool = False
    """Mount the agent's image as a volume (Kubernetes 1.35 and later) instead of copying it by an init container."""
    agent_on_loopback: bool = False
    """True: the agent is reached from inside its pod only (`pods/exec`)."""
    runtime_name: str = "pod"
    """What agents call their runtime."""
    image_pull_policy: str = "IfNotPresent"
    runtime_class: str = ""
    """RuntimeClass of sandboxes, e.g. gVisor's or Kata's; empty: the node's default."""
    host_users: bool | None = None
    """False: a user namespace for each pod, where the cluster has them. None: not said."""
    cpu_request: float = 1.0
    memory_request: float = 1.0
    """Fractions of the limits that pods request; below 1 nodes are overcommitted."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the pod's spec: nodeSelector, tolerations, affinity, imagePullSecrets, priorityClassName."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels of every pod."""


def claim_annotations(tag: ClaimTag, now_s: float) -> dict[str, str]:
    """Whose a pod is."""
    return {
        RUN: tag.run_id,
        ATTEMPT: tag.attempt_id,
        TASK: tag.task_digest,
        KEY: tag.idempotency_key,
        CLAIMED_AT: str(int(now_s)),
    }


def pod_of(
    name: str,
    template: Template,
    place: Placement,
    network: str,
    network_env: Mapping[str, str],
    options: PodOptions,
    claim: Mapping[str, str] | None,
    deadline_s: int = 0,
    canaries: Sequence[str] = (),
    nameservers: Sequence[str] = (),
) -> dict[str, Any]:
    """The pod of a sandbox. claim: its annotations when it is claimed from the start; None: it is warm.

    deadline_s: activeDeadlineSeconds, which can only be lowered later and so is left out of warm pods.
    canaries: host:port that must be refused before anything of the task runs (`NetworkKeeper.canaries`).
    nameservers: of a public network; none: its node's.
    """
    labels = {
        **options.labels,
        **place.labels(COMPONENT, network=network),
        TEMPLATE: template.key,
        STATE: WARM if claim is None else CLAIMED,
    }
    spec: dict[str, Any] = {
        **options.pod,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "hostname": "sandbox",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [*_agent_init(options, canaries), *_sidecars(template.image, options)],
        "containers": [_main(template, network_env, options, canaries)],
        "volumes": [_agent_volume(options), *_shared_volumes(template.image)],
        **_dns(template.network.kind, nameservers),
    }
    if template.image.sidecars:
        spec["hostAliases"] = [{"ip": "127.0.0.1", "hostnames": _host_names(template.image)}]
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    if options.host_users is not None:
        spec["hostUsers"] = options.host_users
    if deadline_s:
        spec["activeDeadlineSeconds"] = deadline_s
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": labels,
            # A claim adds to them key by key, which needs one to be there.
            "annotations": dict(claim or {CLAIMED_AT: "0"}),
            "ownerReferences": [dict(place.owner)],
        },
        "spec": spec,
    }


def _agent_init(options: PodOptions, canaries: Sequence[str]) -> list[dict[str, Any]]:
    if options.agent_by_image_volume:
        return []
    return [
        {
            "name": _VOLUME,
            "image": options.agent_image,
            "imagePullPolicy": options.image_pull_policy,
            "command": ["/longshore-agent", "install", AGENT],
            "env": _canary_env(canaries),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": _VOLUME, "mountPath": AGENT_FOLDER}],
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {"cpu": "1", "memory": "64Mi"},
            },
            "securityContext": {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False, "runAsUser": 0},
        }
    ]


def _canary_env(canaries: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": "LONGSHORE_AGENT_CANARIES", "value": ",".join(canaries)}] if canaries else []


def _agent_volume(options: PodOptions) -> dict[str, Any]:
    if options.agent_by_image_volume:
        reference = {"reference": options.agent_image, "pullPolicy": options.image_pull_policy}
        return {"name": _VOLUME, "image": reference}
    return {"name": _VOLUME, "emptyDir": {"sizeLimit": _AGENT_SIZE}}


def _main(
    template: Template, network_env: Mapping[str, str], options: PodOptions, canaries: Sequence[str]
) -> dict[str, Any]:
    image = template.image
    own = {
        "LONGSHORE_AGENT_PUBLIC_KEY": options.agent_public_key,
        "LONGSHORE_AGENT_LISTEN": f"127.0.0.1:{AGENT_PORT}" if options.agent_on_loopback else f":{AGENT_PORT}",
        "LONGSHORE_AGENT_RUNTIME": options.runtime_name,
        "LONGSHORE_AGENT_USER": image.user,
        "LONGSHORE_AGENT_WORKDIR": image.workdir,
        "LONGSHORE_AGENT_MAX_PROCESSES": str(template.limits.max_processes),
        "LONGSHORE_AGENT_MAX_FILE_MB": str(template.limits.max_file_mb),
    }
    # PATH and the like come from the image; the task's own values win over the proxy's.
    env: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in {**network_env, **image.env, **own}.items()
    ]
    for name, path in (("SANDBOX_ID", "metadata.name"), ("INSTANCE", "metadata.uid")):
        env.append({"name": f"LONGSHORE_AGENT_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}})
    if options.agent_by_image_volume:  # else the init container has waited
        env += _canary_env(canaries)
    return {
        "name": MAIN,
        "image": image.reference,
        "imagePullPolicy": options.image_pull_policy,
        "command": [AGENT, "serve"],
        "env": env,
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "volumeMounts": [{"name": _VOLUME, "mountPath": AGENT_FOLDER, "readOnly": True}, *_mounts(image, MAIN)],
        "resources": resources(template.limits, options),
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": False,
            "capabilities": {"drop": ["ALL"], "add": list(KEPT_CAPABILITIES)},
        },
    }


def resources(limits: Limits, options: PodOptions) -> dict[str, Any]:
    """Requests and limits of the main container."""
    storage = {"ephemeral-storage": f"{limits.storage_mb}Mi"}
    return {
        "limits": {"cpu": f"{max(1, round(1000 * limits.cpus))}m", "memory": f"{limits.memory_mb}Mi", **storage},
        "requests": {
            "cpu": f"{max(1, round(1000 * limits.cpus * options.cpu_request))}m",
            "memory": f"{max(1, round(limits.memory_mb * options.memory_request))}Mi",
            **storage,
        },
    }


def _sidecars(image: Image, options: PodOptions) -> list[dict[str, Any]]:
    return [_sidecar(image, one, options) for one in image.sidecars]


def _sidecar(image: Image, one: Sidecar, options: PodOptions) -> dict[str, Any]:
    capabilities = {"drop": ["ALL"], "add": list(KEPT_CAPABILITIES)}
    spec = {key: value for key, value in one.spec.items() if key not in ("volumes", "aliases", "once")}
    container = {
        "imagePullPolicy": options.image_pull_policy,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **spec,
        "name": one.name,
        "image": one.reference,
        "volumeMounts": _mounts(image, one.name),
        "securityContext": {"capabilities": capabilities, **spec.get("securityContext", {})},
    }
    if not one.spec.get("once"):
        # A native sidecar: started before what follows it, and ended after main. Without it: run to its end.
        container["restartPolicy"] = "Always"
    return container


def _volumes_of(image: Image) -> list[Mapping[str, Any]]:
    return [volume for one in image.sidecars for volume in one.spec.get("volumes", ())]


def _mounts(image: Image, container: str) -> list[dict[str, Any]]:
    """Of the volumes that compose services share."""
    return [
        {
            "name": volume["name"],
            "mountPath": volume["path"],
            **({"readOnly": True} if volume.get("read_only") else {}),
        }
        for volume in _volumes_of(image)
        if volume["container"] == container
    ]


def _shared_volumes(image: Image) -> list[dict[str, Any]]:
    kinds = {volume["name"]: _empty_dir(volume) for volume in _volumes_of(image)}
    return [{"name": name, "emptyDir": kinds[name]} for name in sorted(kinds)]


def _empty_dir(volume: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"medium": volume["medium"]} if volume.get("medium") else {}
    return {**found, "sizeLimit": f"{volume['size_mb']}Mi"} if volume.get("size_mb") else found


def _host_names(image: Image) -> list[str]:
    """What the containers of a compose task are called; all of them are at this pod's own address."""
    aliases = {alias for one in image.sidecars for alias in one.spec.get("aliases", ())}
    return [MAIN, *sorted({one.name for one in image.sidecars} | aliases)]


def _dns(network: NetworkClass, nameservers: Sequence[str]) -> dict[str, Any]:
    """Only who may reach the internet is told of a name server."""
    if network is NetworkClass.PUBLIC:
        if nameservers:
            return {"dnsPolicy": "None", "dnsConfig": {"nameservers": list(nameservers)}}
        return {"dnsPolicy": "Default"}
    return {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"], "options": [{"name": "attempts", "value": "1"}]},
    }
