"""Finds the cluster's own addresses, which no sandbox may reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longshore_common.errors import LongshoreError
from longshore_sandbox_scheduler.runtimes.pod.cluster_objects import ClusterObjects
from longshore_sandbox_scheduler.runtimes.pod.network_policy import ClusterAddresses

_SERVICE_OF_SLICE = "kubernetes.io/service-name"
_KUBELET_PORT = 10250

Object = Mapping[str, Any]


async def discover(api: ClusterObjects, dns_service: tuple[str, str] = ("kube-system", "kube-dns")) -> ClusterAddresses:
    """What can be read; what cannot is named in `unknown`. dns_service: namespace and name."""
    unknown: list[str] = []

    async def read(kind: str, namespace: str = "", selector: str = "") -> Sequence[Object]:
        try:
            return await api.list(kind, namespace, selector)
        except LongshoreError as error:
            unknown.append(f"{kind}{f' in {namespace}' if namespace else ''}: {error.message}")
            return ()

    nodes = await read("nodes")
    api_slices = await read("endpointslices", "default", f"{_SERVICE_OF_SLICE}=kubernetes")
    api_services = [one for one in await read("services", "default") if one["metadata"]["name"] == "kubernetes"]
    dns_namespace, dns_name = dns_service
    dns_slices = await read("endpointslices", dns_namespace, f"{_SERVICE_OF_SLICE}={dns_name}")
    dns_services = [one for one in await read("services", dns_namespace) if one["metadata"]["name"] == dns_name]
    return ClusterAddresses(
        nodes=_sorted(node_addresses(nodes)),
        api_servers=tuple(sorted({*slice_targets(api_slices), *service_targets(api_services)})),
        pods=_sorted(cidr for node in nodes for cidr in node.get("spec", {}).get("podCIDRs") or ()),
        services=_sorted(cidr for one in await read("servicecidrs") for cidr in one.get("spec", {}).get("cidrs") or ()),
        dns=_sorted(address for address, _ in {*slice_targets(dns_slices), *service_targets(dns_services)}),
        kubelet_port=kubelet_port(nodes),
        unknown=tuple(unknown),
    )


def node_addresses(nodes: Iterable[Object]) -> set[str]:
    """IP addresses of nodes, host names left out."""
    found = {one["address"] for node in nodes for one in node.get("status", {}).get("addresses") or ()}
    return {address for address in found if _is_address(address)}


def kubelet_port(nodes: Iterable[Object]) -> int:
    """Port of the first node's kubelet that says one."""
    for node in nodes:
        if port := node.get("status", {}).get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port"):
            return int(port)
    return _KUBELET_PORT


def slice_targets(slices: Iterable[Object]) -> set[tuple[str, int]]:
    """Address and port of each endpoint."""
    return {
        (address, int(port["port"]))
        for one in slices
        for endpoint in one.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
        for port in one.get("ports") or ()
        if port.get("port") and _is_address(address)
    }


def service_targets(services: Iterable[Object]) -> set[tuple[str, int]]:
    """Cluster IP and port of each Service."""
    return {
        (address, int(port["port"]))
        for one in services
        for address in one.get("spec", {}).get("clusterIPs") or ()
        for port in one.get("spec", {}).get("ports") or ()
        if _is_address(address)
    }


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _sorted(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(found)))
