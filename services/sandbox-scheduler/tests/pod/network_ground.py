"""Pods to try networks with, on the real cluster: a gateway, neighbours, sandboxes that dial, a web server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import REGISTRY

from longshore_sandbox_scheduler.domain.model import Network
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi, KubeOptions
from longshore_sandbox_scheduler.runtimes.pod.kube_objects import KubeObjects
from longshore_sandbox_scheduler.runtimes.pod.network import NetworkKeeper
from longshore_sandbox_scheduler.runtimes.pod.network_probe import parse_tries
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

T = TypeVar("T")
AGENT_PORT = 7409
GATEWAY_PORT = 7443
BODY = "from the allowed host"


@dataclass(frozen=True)
class Images:
    """Images that the cluster has."""

    agent: str
    proxy: str
    busybox: str


IMAGES = Images(*(f"localhost/longshore/{name}:dev" for name in ("agent", "egress-proxy", "busybox")))
_CALLS = "longshore_sandbox_api_calls_total"
_WRITES = frozenset({"create", "patch", "update", "delete"})


@contextlib.asynccontextmanager
async def furnished_ground(kubeconfig: str, images: Images = IMAGES) -> AsyncIterator[Ground]:
    """A ground in two namespaces of its own, removed at the end."""
    tag = secrets.token_hex(4)
    kube = await KubeApi.open(KubeOptions(kubeconfig=kubeconfig))
    api, outside = (KubeObjects(kube, f"net-{what}-{tag}") for what in ("sandboxes", "services"))
    try:
        for one in (api, outside):
            meta = {"name": one.namespace, "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}
            await one.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        place, unguarded = await _place(api, "longshore-sandboxes"), await _place(outside, "unguarded")
        ground = Ground(api, outside, place, unguarded, images)
        await ground.furnish()
        yield ground
    finally:
        for one in (api, outside):
            await one.delete("namespaces", one.namespace)
        await kube.close()


async def _place(api: KubeObjects, owner: str) -> Placement:
    made = await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": owner}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": made["metadata"]["uid"]}
    return Placement(api.namespace, "r1", reference)


def api_writes() -> float:
    """Writes of this process to the Kubernetes API so far."""
    samples = [one for metric in REGISTRY.collect() for one in metric.samples]
    return sum(one.value for one in samples if one.name == _CALLS and one.labels["verb"] in _WRITES)


@dataclass
class Ground:
    """One sandbox namespace, and one without policies that `outside` works in. Addresses are host:port."""

    api: KubeObjects
    outside: KubeObjects
    place: Placement
    unguarded: Placement
    images: Images
    gateway: str = ""
    neighbour: str = ""
    stranger: str = ""
    web: str = ""

    async def furnish(self) -> None:
        """Starts what sandboxes may want to reach: another sandbox, a gateway and a pod elsewhere, a web server."""
        labels = {**self.place.labels("sandbox", network="wide-open")}
        await self.api.create(_open_to_all(self.place, labels))
        pods = [
            (self.api, "neighbour", labels, _serve(self.images, AGENT_PORT)),
            (self.outside, "gateway", {"app": "gateway"}, _serve(self.images, GATEWAY_PORT)),
            (self.outside, "stranger", {"app": "stranger"}, _serve(self.images, AGENT_PORT)),
        ]
        for api, name, own, container in pods:
            await api.create(pod(name, own, container))
        await self.outside.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"index.html": BODY}}
        )
        await self.outside.create(web_pod(self.images))
        addresses = [await address_of(api, name) for api, name, _, _ in pods]
        self.neighbour, self.gateway, self.stranger = (
            f"{address}:{port}" for address, port in zip(addresses, (AGENT_PORT, GATEWAY_PORT, AGENT_PORT), strict=True)
        )
        self.web = await address_of(self.outside, "web")

    async def dial(
        self, keeper: NetworkKeeper, network: Network, expected: Mapping[str, str], seconds: float = 30
    ) -> dict[str, str]:
        """What a sandbox of `network` finds of its targets, once it is as expected or the time is up."""
        label = await keeper.ensure(network)
        return await self.dial_as(self.place.labels("sandbox", network=label), expected, seconds)

    async def dial_as(
        self,
        labels: Mapping[str, str],
        expected: Mapping[str, str],
        seconds: float = 30,
        api: KubeObjects | None = None,
    ) -> dict[str, str]:
        """As `dial`, from a pod with these labels; api: in its namespace."""
        api = api or self.api
        arguments = [f"{wanted}={target}" for target, wanted in expected.items()]
        name = f"dial-{secrets.token_hex(4)}"
        container = {
            "image": self.images.agent,
            "args": ["probe", "--json", "--until-expected", f"{seconds:g}", *arguments],
        }
        await api.create(pod(name, labels, container))
        await phase_of(api, name, ("Succeeded", "Failed"))
        tries = parse_tries(await api.log("pods", name))
        return {target: "open" if tries[target][-1][1] else "closed" for target in expected}

    async def first_look(self, keeper: NetworkKeeper, network: Network, targets: Sequence[str], pods: int) -> list[str]:
        """What `pods` sandboxes, started together and each made to wait as the pod runtime does, reach at once."""
        label = await keeper.ensure(network)
        names = [f"look-{secrets.token_hex(4)}" for _ in range(pods)]
        look = {"image": self.images.agent, "args": ["probe", "--json", "--timeout", "1", *targets]}
        wait = {
            "name": "agent",
            "image": self.images.agent,
            "args": ["install", "/agent/longshore-agent"],
            "env": [{"name": "LONGSHORE_AGENT_CANARIES", "value": ",".join(keeper.canaries)}],
            "volumeMounts": [{"name": "agent", "mountPath": "/agent"}],
        }
        more = {"initContainers": [wait], "volumes": [{"name": "agent", "emptyDir": {}}]}
        labels = self.place.labels("sandbox", network=label)
        await asyncio.gather(*(self.api.create(pod(name, labels, look, **more)) for name in names))
        reached = []
        for name in names:
            await phase_of(self.api, name, ("Succeeded", "Failed"))
            tries = parse_tries(await self.api.log("pods", name))
            assert set(tries) == set(targets)
            reached += [target for target in targets if tries[target][0][1]]
        return reached

    async def none_left(self, kind: str, selector: str) -> None:
        """Waits until no such object is left in the sandbox namespace."""

        async def look() -> bool | None:
            return not await self.api.list(kind, self.place.namespace, selector) or None

        await until(look, f"no {kind} with {selector}", 60)

    async def agent(self, labels: Mapping[str, str]) -> str:
        """Address of a new agent with these labels."""
        name = f"agent-{secrets.token_hex(4)}"
        await self.api.create(pod(name, labels, _serve(self.images, AGENT_PORT)))
        return await address_of(self.api, name)

    async def fetch(self, keeper: NetworkKeeper, network: Network, url: str) -> str:
        """The answer, headers and all, that a sandbox gets for a URL from the proxy that its environment names."""
        label = await keeper.ensure(network)
        name = f"fetch-{secrets.token_hex(4)}"
        env = [{"name": key, "value": value} for key, value in keeper.proxy_env(network).items()]
        container = {"image": self.images.busybox, "command": ["busybox", "sh", "-c", _FETCH, "fetch", url], "env": env}
        await self.api.create(pod(name, self.place.labels("sandbox", network=label), container))
        await phase_of(self.api, name, ("Succeeded", "Failed"))
        return await self.api.log("pods", name)


_FETCH = """
proxy=${HTTP_PROXY#http://}
for again in 1 2 3 4 5 6 7 8; do
  answer=$( (busybox printf 'GET %s HTTP/1.0\\r\\n\\r\\n' "$1"; busybox sleep 3) |
    busybox nc -w 5 "${proxy%:*}" "${proxy##*:}" 2>&1)
  case $answer in *longshore-egress*) echo "$answer"; exit ;; esac
done
echo "no answer: $answer"
"""
"""Policies and Services come into force a moment after a pod's start; until then something else may answer for the
proxy, so only what it signed counts. A static busybox has nc but no working wget, which looks up service names."""


def pod(name: str, labels: Mapping[str, str], container: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod of one container, within Pod Security baseline."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "imagePullPolicy": "IfNotPresent", **container}],
            **spec,
        },
    }


def web_pod(images: Images) -> dict[str, Any]:
    """Serves BODY on port 80."""
    container = {
        "image": images.busybox,
        "command": ["busybox", "httpd", "-f", "-p", "80", "-h", "/www"],
        "volumeMounts": [{"name": "www", "mountPath": "/www"}],
    }
    return pod("web", {"app": "web"}, container, volumes=[{"name": "www", "configMap": {"name": "web"}}])


async def address_of(api: KubeObjects, name: str) -> str:
    """Address of a pod, once it runs."""
    found = await phase_of(api, name, ("Running",))
    return str(found["status"]["podIP"])


async def phase_of(api: KubeObjects, name: str, phases: Sequence[str], seconds: float = 90) -> Mapping[str, Any]:
    """The pod, once it is in such a phase."""

    async def look() -> Mapping[str, Any] | None:
        found = await api.get("pods", name) or {}
        return found if found.get("status", {}).get("phase") in phases else None

    return await until(look, f"pod {name} is {' or '.join(phases)}", seconds)


async def until(look: Callable[[], Awaitable[T | None]], what: str, seconds: float) -> T:
    """What `look` finds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := await look()) is not None:
            return found
        await asyncio.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def _serve(images: Images, port: int) -> dict[str, Any]:
    env = {
        "LONGSHORE_AGENT_PUBLIC_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "LONGSHORE_AGENT_SANDBOX_ID": "test",
        "LONGSHORE_AGENT_INSTANCE": "test",
        "LONGSHORE_AGENT_LISTEN": f":{port}",
    }
    return {
        "image": images.agent,
        "args": ["serve"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }


def _open_to_all(place: Placement, labels: Mapping[str, str]) -> dict[str, Any]:
    """Lets everybody in, so that what cannot reach the neighbour is held back by its own policy."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "neighbour", "namespace": place.namespace},
        "spec": {"podSelector": {"matchLabels": dict(labels)}, "policyTypes": ["Ingress"], "ingress": [{}]},
    }
