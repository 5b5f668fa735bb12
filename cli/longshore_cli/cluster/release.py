"""What a release has in its namespace: the Services of its components, and the secret that they share."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longshore_cli.cluster.kubectl import Kubectl, KubectlError
from longshore_cli.errors import CliError
from longshore_cli.local.settings import SERVICES

APP = "app.kubernetes.io/name=longshore"
INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
CONTROLLER, SCHEDULER = "controller", "sandbox-scheduler"
SECRET_VARIABLE = "LONGSHORE_SECRET"
PORT_BASE = 7400
AGENT_PORT = 7410
"""Where the scheduler relays to sandboxes."""


@dataclass(frozen=True)
class Port:
    """A port of a component: of its gRPC, HTTP or agent relay. target: what kubectl forwards to."""

    component: str
    kind: str
    target: str
    number: int


async def find_ports(kubectl: Kubectl, release: str) -> list[Port]:
    """The ports of a release's components.

    Raises:
        CliError: there is no such release; says which there are.
    """
    found = await kubectl.get("services", "-l", f"{APP},{INSTANCE}={release}")
    services = {item["metadata"]["labels"].get(COMPONENT, ""): item for item in _with_ports(found)}
    if CONTROLLER not in services:
        raise await _no_release(kubectl, release)
    ports = []
    for service in SERVICES:
        item = services.get(service.name)
        if item is None:
            continue
        ports.append(_port(item, service.name, "grpc", ("grpc",), PORT_BASE + service.offset))
        if service.http_offset is not None:
            ports.append(_port(item, service.name, "http", ("http", "rest"), PORT_BASE + service.http_offset))
    if SCHEDULER in services:
        ports.append(_relay(services[SCHEDULER]))
    return ports


def _with_ports(found: dict[str, Any]) -> list[dict[str, Any]]:
    # Headless Services (clusterIP None) are for peers; the others balance.
    return [item for item in found["items"] if item["spec"].get("ports") and item["spec"].get("clusterIP") != "None"]


def _declared(item: dict[str, Any], names: Sequence[str], number: int) -> int | None:
    ports = item["spec"]["ports"]
    by_name = next((port["port"] for port in ports if port.get("name") in names), None)
    return by_name or next((port["port"] for port in ports if port["port"] == number), None)


def _port(item: dict[str, Any], component: str, kind: str, names: Sequence[str], number: int) -> Port:
    name = item["metadata"]["name"]
    declared = _declared(item, names, number)
    if declared is None:
        there = ", ".join(f"{port.get('name', '')} {port['port']}".strip() for port in item["spec"]["ports"])
        raise CliError(
            f"Service {name} has no port {names[0]} ({number}), it has {there}: is this release of another version?"
        )
    return Port(component, kind, f"service/{name}", declared)


def _relay(item: dict[str, Any]) -> Port:
    """Within the cluster nobody needs it, so it may be a port of the pods only."""
    name = item["metadata"]["name"]
    declared = _declared(item, ("agent", "agents"), AGENT_PORT)
    target = f"service/{name}" if declared else f"deployment/{name}"
    return Port(SCHEDULER, "agent", target, declared or AGENT_PORT)


async def _no_release(kubectl: Kubectl, release: str) -> CliError:
    selector = f"{APP},{COMPONENT}={CONTROLLER}"
    try:
        found = await kubectl.get("services", "--all-namespaces", "-l", selector)
    except KubectlError:  # Not everybody may look into all namespaces.
        found = await kubectl.get("services", "-l", selector)
    there = sorted(
        {f"{one['metadata']['labels'].get(INSTANCE)} in {one['metadata']['namespace']}" for one in found["items"]}
    )
    known = f"there is {', '.join(there)}" if there else "none is visible; `helm list --all-namespaces` shows releases"
    return CliError(f"no Longshore release {release!r} in namespace {kubectl.namespace}: {known}")


async def read_secret(kubectl: Kubectl, ports: Sequence[Port]) -> str:
    """The secret that the release's services share: the one that its controller is given.

    Raises:
        CliError: it cannot be read.
    """
    service = next(port.target for port in ports if port.component == CONTROLLER).partition("/")[2]
    try:
        name, key = _reference(await kubectl.get("deployment", service), service)
        found = await kubectl.get("secret", name)
    except KubectlError as error:
        right = (
            "your user may not read it: ask for `get` on secrets and deployments" if error.forbidden else error.reason
        )
        raise CliError(f"the secret of the release in {kubectl.namespace} cannot be read: {right}") from error
    try:
        return base64.b64decode(found["data"][key]).decode().strip()
    except (KeyError, ValueError) as error:
        raise CliError(f"Secret {name} in {kubectl.namespace} has no readable key {key}") from error


def _reference(deployment: dict[str, Any], service: str) -> tuple[str, str]:
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        for variable in container.get("env", ()):
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if variable["name"] == SECRET_VARIABLE and reference:
                return reference["name"], reference["key"]
    return f"{service.removesuffix(f'-{CONTROLLER}')}-secret", "secret"
