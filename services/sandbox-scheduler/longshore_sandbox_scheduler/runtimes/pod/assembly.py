"""Puts the pod runtime together from its settings."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from longshore_common.agent_client import AgentChannels
from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.runtimes.pod.agent_prober import AgentProber, HealthProber
from longshore_sandbox_scheduler.runtimes.pod.agent_ways import PodAddresses
from longshore_sandbox_scheduler.runtimes.pod.exec_tunnel import ExecTunnels
from longshore_sandbox_scheduler.runtimes.pod.images import ImageOptions, PodImages
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi, KubeOptions
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.kube_objects import KubeObjects
from longshore_sandbox_scheduler.runtimes.pod.layer_sender import LayerSender
from longshore_sandbox_scheduler.runtimes.pod.leadership import LeaseLeadership, LeaseOptions
from longshore_sandbox_scheduler.runtimes.pod.network import NetworkKeeper, NetworkOptions
from longshore_sandbox_scheduler.runtimes.pod.placement import COMPONENT, MANAGED_BY, MANAGER, RELEASE, Placement
from longshore_sandbox_scheduler.runtimes.pod.pod_runtime import PodRuntime, PodRuntimeOptions
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import AGENT, PodOptions
from longshore_sandbox_scheduler.runtimes.pod.prepull import PrePuller, PrePullOptions
from longshore_sandbox_scheduler.runtimes.pod.reasons import MAIN
from longshore_sandbox_scheduler.runtimes.pod.startup_checks import (
    BASE_RIGHTS,
    EGRESS_RIGHTS,
    EXEC_RIGHTS,
    PREPULL_RIGHTS,
    RuntimeClassOptions,
    check_image_volumes,
    check_rights,
    check_runtime_class,
)

OWNER = "longshore-sandboxes"
_OWNER_ATTEMPTS = 3


@dataclass(frozen=True)
class PodSettings:
    """Sandboxes on Kubernetes."""

    namespace: str = "longshore-sandboxes"
    """Namespace of sandboxes, apart from the services'; it must exist, with Pod Security `baseline`."""
    release: str = "longshore"
    """Marks this installation's objects; two of them in one namespace never touch each other's."""
    kube: KubeOptions = field(default_factory=KubeOptions)
    agent_image: str = ""
    """Image of the in-sandbox agent (deploy/docker/agent.Dockerfile)."""
    agent_by_image_volume: bool = False
    agent_through_api: bool = False
    """True: agents are reached by `pods/exec` through the API server, for schedulers and callers that no pod address is
    routed to. Slower, and all bytes pass the API server and the scheduler; the runtime is then named pod-exec."""
    image_pull_policy: str = "IfNotPresent"
    runtime_class: str = ""
    """RuntimeClass of sandboxes. The scheduler does not start unless its pods run on a kernel of their own."""
    runtime_class_shares_kernel: bool = False
    """True: that class is meant to run on the nodes' kernel (crun, a device runtime)."""
    host_users: bool | None = None
    cpu_request: float = 1.0
    memory_request: float = 1.0
    pod: dict[str, Any] = field(default_factory=dict)
    """More fields of every sandbox pod's spec: nodeSelector, tolerations, imagePullSecrets, priorityClassName."""
    labels: dict[str, str] = field(default_factory=dict)
    images: ImageOptions = field(default_factory=ImageOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    start: PodRuntimeOptions = field(default_factory=PodRuntimeOptions)
    prepull: PrePullOptions = field(default_factory=PrePullOptions)
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    """Leader election among the schedulers of a release."""

    def network_options(self) -> NetworkOptions:
        """The network is probed with the agent's own image unless another is named."""
        probe = self.network.probe
        return replace(self.network, probe=replace(probe, image=probe.image or self.agent_image))

    def pod_options(self, public_key: str) -> PodOptions:
        """How pods are made. Raises InvalidSpec without an agent image."""
        if not self.agent_image:
            raise InvalidSpec("pods.agent_image is not set: name the image of the in-sandbox agent", field="pods")
        return PodOptions(
            agent_image=self.agent_image,
            agent_public_key=public_key,
            agent_by_image_volume=self.agent_by_image_volume,
            agent_on_loopback=self.agent_through_api,
            runtime_name=ExecTunnels.runtime_name if self.agent_through_api else PodAddresses.runtime_name,
            image_pull_policy=self.image_pull_policy,
            runtime_class=self.runtime_class,
            host_users=self.host_users,
            cpu_request=self.cpu_request,
            memory_request=self.memory_request,
            pod=self.pod,
            labels=self.labels,
        )


@dataclass(frozen=True)
class PodParts:
    """What belongs to one scheduler on a cluster."""

    api: KubeApi
    place: Placement
    runtime: PodRuntime
    leadership: LeaseLeadership


async def assemble(
    settings: PodSettings,
    clock: Clock,
    public_key: str,
    mint: Callable[[str, str, int], str],
    prober: AgentProber | None = None,
) -> PodParts:
    """mint: token of a sandbox, an instance and an end in ms. prober: instead of the agent's own health.

    Raises:
        InvalidSpec: a setting is missing.
        Unavailable: no credentials, or the API server is away.
    """
    options = settings.pod_options(public_key)
    api = await KubeApi.open(settings.kube)
    try:
        place = Placement(settings.namespace, settings.release, await owner_reference(api, settings))
    except BaseException:
        await api.close()
        raise
    timeout_ms = int(1000 * settings.start.start_timeout_s)

    def token(sandbox: str, instance: str) -> str:
        return mint(sandbox, instance, clock.now_ms() + timeout_ms)

    tunnels = ExecTunnels(api, settings.namespace, MAIN, (AGENT, "connect")) if settings.agent_through_api else None
    # Not those of relayed calls: a bound that starts and claims push against must not end somebody's command.
    channels = AgentChannels()
    runtime = PodRuntime(
        api,
        place,
        NetworkKeeper(KubeObjects(api, settings.namespace), place, settings.network_options()),
        PodImages(settings.images),
        prober or HealthProber(channels, token),
        LayerSender(channels, token, settings.images.concurrent_layers),
        clock,
        options,
        settings.start,
        lambda: check_cluster(api, place, settings),
        tunnels,
        PrePuller(api, place, options, settings.prepull) if settings.prepull.enabled else None,
    )
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    lease = replace(settings.lease, name=f"{settings.lease.name}-{settings.release}")
    return PodParts(api, place, runtime, LeaseLeadership(api, place, identity, lease, clock.monotonic))


async def check_cluster(api: KubeApi, place: Placement, settings: PodSettings) -> None:
    """Raises Unavailable: a right is missing, or the RuntimeClass is not what it says."""
    rights = [BASE_RIGHTS]
    if settings.network.egress.image:
        rights.append(EGRESS_RIGHTS)
    if settings.agent_through_api:
        rights.append(EXEC_RIGHTS)
    if settings.prepull.enabled:
        rights.append(PREPULL_RIGHTS)
    await check_rights(api, place.namespace, *rights)
    if settings.agent_by_image_volume:
        await check_image_volumes(api, place, settings.agent_image)
    if settings.runtime_class:
        options = RuntimeClassOptions(
            settings.runtime_class,
            settings.agent_image,
            settings.image_pull_policy,
            settings.runtime_class_shares_kernel,
            pod=settings.pod,
        )
        await check_runtime_class(api, place, options)


async def owner_reference(api: KubeApi, settings: PodSettings) -> dict[str, Any]:
    """Of the ConfigMap that owns all of this release's objects in the namespace; made if need be.

    An owner in another namespace counts as absent, and Kubernetes would delete what it owns.
    """
    name = f"{OWNER}-{settings.release}"
    labels = {MANAGED_BY: MANAGER, COMPONENT: "owner", RELEASE: settings.release}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "data": {"about": "Owns the sandboxes of this Longshore release: deleting it deletes them all."},
    }
    for _ in range(_OWNER_ATTEMPTS):
        try:
            found = await api.get("configmaps", settings.namespace, name)
        except KubeError as error:
            if error.status != 404:
                raise _unusable(settings, error) from error
            try:
                found = await api.create("configmaps", settings.namespace, body)
            except KubeError as again:
                if again.reason == "AlreadyExists":
                    continue
                raise _unusable(settings, again) from again
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": found["metadata"]["uid"]}
    raise Unavailable(f"ConfigMap {name} in {settings.namespace} comes and goes; is another release deleting it?")


def _unusable(settings: PodSettings, error: KubeError) -> Unavailable:
    return Unavailable(
        f"the sandbox namespace {settings.namespace} cannot be used: {error.message}; create it, and give the "
        "scheduler's service account its role there (deploy/)",
        retryable=error.retryable,
    )
