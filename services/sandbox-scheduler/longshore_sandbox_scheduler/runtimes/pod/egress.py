"""The egress proxy of an allowlist with hosts: a Deployment and a Service of its own, never a sidecar. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Network
from longshore_sandbox_scheduler.runtimes.pod.network_policy import (
    PROXY_COMPONENT,
    PROXY_PORT,
    SPEC_ANNOTATION,
    ClusterAddresses,
    Object,
    PolicyOptions,
    address_rules,
    label_of,
    proxy_policy,
)
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

_USER = 65532
_PORT_NAME = "proxy"
_DIRECT = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class EgressOptions:
    """How egress proxies run. Memory in MiB."""

    image: str = ""
    """Image of the proxy (deploy/docker/egress-proxy.Dockerfile); empty: allowlists with hosts are refused."""
    replicas: int = 1
    cpus: float = 0.5
    memory_mb: int = 128
    max_connections: int = 2048
    max_connections_per_sandbox: int = 128
    host_addresses: Mapping[str, str] = field(default_factory=dict)
    """Host name -> address for names that the cluster's DNS does not know."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the pod's spec: nodeSelector, tolerations, imagePullSecrets, priorityClassName."""
    start_s: float = 60.0
    """Longest wait for a new proxy, seconds."""


def proxy_objects(
    place: Placement,
    anchor: Mapping[str, Any],
    wanted: Network,
    policy: PolicyOptions,
    egress: EgressOptions,
    cluster: ClusterAddresses,
) -> Sequence[Object]:
    """NetworkPolicy, Service and Deployment, in the order to make them in.

    `anchor` is the allowlist's policy as the API server has it. It owns them, so they go when it goes; and its UID is
    in their name, so that those of a swept allowlist and of its successor never meet.

    Raises:
        InvalidSpec: no proxy image is set.
    """
    if not egress.image:
        raise InvalidSpec(
            "network.hosts needs the egress proxy: set the scheduler's network.egress.image, or name CIDRs instead",
            field="network.hosts",
        )
    label = label_of(wanted)
    name = f"longshore-egress-{label.rpartition('-')[2]}-{anchor['metadata']['uid'][:8]}"
    owner = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "name": anchor["metadata"]["name"],
        "uid": anchor["metadata"]["uid"],
    }
    owned = Placement(place.namespace, place.release, owner)
    return (
        proxy_policy(owned, name, label, policy, cluster),
        _object(owned, "v1", "Service", name, label, _service(owned, label)),
        _object(owned, "apps/v1", "Deployment", name, label, _deployment(owned, wanted, policy, egress, cluster)),
    )


def proxy_env(address: str, direct: Sequence[str]) -> dict[str, str]:
    """Variables that send a sandbox's HTTP clients through the proxy at `address`, all but those to `direct`."""
    url = f"http://{f'[{address}]' if ':' in address else address}:{PROXY_PORT}"
    around = ",".join([*_DIRECT, *direct])
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": around}
    return {**values, **{name.lower(): value for name, value in values.items()}}


def proxy_arguments(
    wanted: Network, policy: PolicyOptions, egress: EgressOptions, cluster: ClusterAddresses
) -> list[str]:
    """Command line of the proxy."""
    arguments = [f"-listen=:{PROXY_PORT}", f"-addresses={address_rules(policy, cluster).as_flag()}"]
    arguments += [f"-allow-host={host}" for host in wanted.hosts]
    for flag, ports in (("-tls-ports", policy.proxy_tls_ports), ("-http-ports", policy.proxy_http_ports)):
        if ports:
            arguments.append(f"{flag}={','.join(map(str, ports))}")
    arguments.append(f"-max-connections={egress.max_connections}")
    arguments.append(f"-max-connections-per-client={egress.max_connections_per_sandbox}")
    return arguments


def _service(place: Placement, label: str) -> Object:
    return {
        "type": "ClusterIP",
        "selector": place.labels(PROXY_COMPONENT, network=label),
        "ports": [{"name": _PORT_NAME, "port": PROXY_PORT, "targetPort": PROXY_PORT, "protocol": "TCP"}],
    }


def _deployment(
    place: Placement, wanted: Network, policy: PolicyOptions, egress: EgressOptions, cluster: ClusterAddresses
) -> Object:
    labels = place.labels(PROXY_COMPONENT, network=label_of(wanted))
    container = {
        "name": "egress-proxy",
        "image": egress.image,
        "args": proxy_arguments(wanted, policy, egress, cluster),
        "ports": [{"name": _PORT_NAME, "containerPort": PROXY_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PROXY_PORT}, "periodSeconds": 2},
        "resources": {
            "requests": {"cpu": "10m", "memory": f"{min(32, egress.memory_mb)}Mi"},
            "limits": {"cpu": str(egress.cpus), "memory": f"{egress.memory_mb}Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        **egress.pod,
    }
    if egress.host_addresses:
        spec["hostAliases"] = [
            {"ip": address, "hostnames": [name]} for name, address in sorted(egress.host_addresses.items())
        ]
    return {
        "replicas": egress.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }


def _object(place: Placement, version: str, kind: str, name: str, label: str, spec: Object) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": place.labels(PROXY_COMPONENT, network=label),
            "annotations": {SPEC_ANNOTATION: digest(spec).removeprefix("sha256:")[:20]},
            "ownerReferences": [dict(place.owner)],
        },
        "spec": spec,
    }
