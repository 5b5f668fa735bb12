"""Network isolation of pod sandboxes: keeps policies and egress proxies in place, and says what it can hold to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from longshore_common.errors import AlreadyExists, InvalidSpec, LongshoreError, NotFound, Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass
from longshore_sandbox_scheduler.domain.runtime import Removed
from longshore_sandbox_scheduler.runtimes.pod.cluster_objects import ClusterObjects
from longshore_sandbox_scheduler.runtimes.pod.discovery import discover
from longshore_sandbox_scheduler.runtimes.pod.egress import EgressOptions, proxy_env, proxy_objects
from longshore_sandbox_scheduler.runtimes.pod.network_policy import (
    POLICY_COMPONENT,
    PROXY_COMPONENT,
    SPEC_ANNOTATION,
    ClusterAddresses,
    Object,
    PolicyOptions,
    default_deny,
    label_of,
    sandbox_policy,
)
from longshore_sandbox_scheduler.runtimes.pod.network_probe import (
    PROBE_COMPONENT,
    NetworkProbe,
    ProbeOptions,
    ProbeResult,
)
from longshore_sandbox_scheduler.runtimes.pod.placement import NETWORK, Placement

log = get_logger(__name__)

LAST_USED = "longshore.dev/last-used"
"""When an allowlist was last asked for, seconds since the epoch; kept on its policy, seen by all replicas."""
_PROBE_KEY = "network-probe"
_POLL_S = 0.25
_KINDS = {"NetworkPolicy": "networkpolicies", "Service": "services", "Deployment": "deployments"}
_PROXY_KINDS = (("Deployment", PROXY_COMPONENT), ("Service", PROXY_COMPONENT), ("NetworkPolicy", POLICY_COMPONENT))


@dataclass(frozen=True)
class NetworkOptions:
    """All that can be said of the network around pod sandboxes; times in seconds."""

    policy: PolicyOptions = field(default_factory=PolicyOptions)
    egress: EgressOptions = field(default_factory=EgressOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    unenforced_allowed: bool = False
    """True: offer all classes though the cluster was not seen to enforce policies; nothing holds them there."""
    nameservers: tuple[str, ...] = ()
    """DNS servers that `public` sandboxes are told of; none: their nodes', which policies may keep them from."""
    dns_service: tuple[str, str] = ("kube-system", "kube-dns")
    """Namespace and name of the cluster's DNS Service."""
    recheck_s: float = 60.0
    """How long a policy that was seen is trusted to be there."""
    rediscover_s: float = 300.0
    """How long the cluster's own addresses are trusted."""
    idle_s: float = 900.0
    """How long an allowlist that no sandbox uses keeps its policy and proxy."""

    def __post_init__(self) -> None:
        if self.idle_s < 4 * self.recheck_s:
            raise InvalidSpec("network.idle_s must be at least four times recheck_s", field="network.idle_s")


@dataclass
class _Held:
    """A network that was put in place, when that was last seen, and its proxy's address."""

    network: Network
    seen_at: float
    address: str = ""


class NetworkKeeper:
    """One per scheduler; several may work on one namespace. No write per sandbox, ever."""

    def __init__(self, api: ClusterObjects, place: Placement, options: NetworkOptions) -> None:
        self._api = api
        self._place = place
        self._options = options
        self._cluster = ClusterAddresses()
        self._discovered_at = float("-inf")
        self._held: dict[str, _Held] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._refusals: dict[NetworkClass, str] = dict.fromkeys(NetworkClass, "the network was not looked at yet")
        self.probe_result = ProbeResult(False, problem="not probed yet")

    @property
    def supported(self) -> frozenset[NetworkClass]:
        """The classes that sandboxes can be held to here."""
        return frozenset(set(NetworkClass) - set(self._refusals))

    @property
    def refusals(self) -> Mapping[NetworkClass, str]:
        """Why a class is not supported, and what to do."""
        return dict(self._refusals)

    @property
    def canaries(self) -> tuple[str, ...]:
        """host:port of what no sandbox may reach though it is there: once refused, a new pod's policies are in force.

        The agent waits for that (LONGSHORE_AGENT_CANARIES). Empty where policies are not enforced.
        """
        return self.probe_result.canaries if self.probe_result.enforced else ()

    async def start(self) -> None:
        """Learns the cluster's addresses, denies by default, and proves that this holds.

        Raises:
            LongshoreError: the API server refuses or is away.
        """
        await self._rediscover()
        await self._apply(default_deny(self._place))
        self.probe_result = await self._recorded_probe() or await self._probe()
        self._refusals = refusals(self._options, self._cluster, self.probe_result)
        for kind, why in self._refusals.items():
            log.warning("network class is not offered", network=kind.value, why=why)
        if self._options.unenforced_allowed and not self.probe_result.enforced:
            log.error("sandboxes are NOT isolated: policies are not enforced", details=self.probe_result.details)

    async def ensure(self, network: Network) -> str:
        """The value of the network label for sandboxes of `network`, whose policy (and proxy) is in place.

        Raises:
            InvalidSpec: the class is not supported here, or the allowlist names what must not be reached.
            Unavailable: the API server is away, or the egress proxy does not start.
        """
        if why := self._refusals.get(network.kind):
            raise InvalidSpec(f"network {network.kind.value} is not offered here: {why}", field="network")
        label = label_of(network)
        async with self._locks.setdefault(label, asyncio.Lock()):
            held = self._held.get(label)
            if held is None or time.monotonic() - held.seen_at > self._options.recheck_s:
                await self._rediscover_if_old()
                self._held[label] = await self._put_in_place(network)
        return label

    def proxy_env(self, network: Network) -> dict[str, str]:
        """Environment of a sandbox of a network that was ensured; empty unless it names hosts."""
        if not network.hosts:
            return {}
        held = self._held.get(label_of(network))
        if held is None or not held.address:
            raise Unavailable(f"the egress proxy of {label_of(network)} is not in place; call ensure first")
        gateways = [peer.cidr for peer in self._options.policy.gateway if peer.cidr]
        return proxy_env(held.address, [*network.cidrs, *(cidr.removesuffix("/32") for cidr in gateways)])

    def nameservers(self, network: Network) -> tuple[str, ...]:
        """DNS servers to tell a sandbox of; none are set, or its class has no DNS."""
        return self._options.nameservers if network.kind is NetworkClass.PUBLIC else ()

    async def sweep(self, used: Collection[str], dry_run: bool = False) -> list[Removed]:
        """Removes allowlists that no sandbox uses (`used`: network labels) and left-over probes.

        Policies in use get addresses of new nodes on the way.
        """
        if not dry_run:
            await self._refresh()
        removed = await self._sweep_allowlists(set(used), dry_run)
        return removed + await self._sweep_probes(dry_run)

    async def _rediscover_if_old(self) -> None:
        if time.monotonic() - self._discovered_at > self._options.rediscover_s:
            await self._rediscover()

    async def _rediscover(self) -> None:
        found = await discover(self._api, self._options.dns_service)
        if found.unknown:
            log.warning("cluster addresses are not all known", unknown=found.unknown)
        self._cluster = merge(self._cluster, found)
        self._discovered_at = time.monotonic()

    async def _refresh(self) -> None:
        await self._rediscover_if_old()
        for label, held in list(self._held.items()):
            if time.monotonic() - held.seen_at > self._options.rediscover_s:
                async with self._locks.setdefault(label, asyncio.Lock()):
                    policy = sandbox_policy(self._place, held.network, self._options.policy, self._cluster)
                    current = await self._api.get("networkpolicies", policy["metadata"]["name"])
                    if current is None:
                        del self._held[label]
                    else:
                        self._held[label] = await self._put_in_place(held.network, touch=False)

    async def _put_in_place(self, network: Network, *, touch: bool = True) -> _Held:
        """Applies what differs. touch: marks an allowlist as asked for."""
        policy = sandbox_policy(self._place, network, self._options.policy, self._cluster)
        if network.kind is not NetworkClass.ALLOWLIST:
            await self._apply(policy)
            return _Held(network, time.monotonic())
        anchor = await self._apply(policy, used=touch)
        if not network.hosts:
            return _Held(network, time.monotonic())
        objects = proxy_objects(self._place, anchor, network, self._options.policy, self._options.egress, self._cluster)
        made = [await self._apply(one) for one in objects]
        address = str(made[1]["spec"]["clusterIP"])
        await self._await_proxy(made[2]["metadata"]["name"])
        return _Held(network, time.monotonic(), address)

    async def _apply(self, wanted: Object, *, used: bool = False) -> Mapping[str, Any]:
        """Creates an object, or changes it when its recorded hash differs, or leaves it after one read."""
        kind, name = _KINDS[wanted["kind"]], wanted["metadata"]["name"]
        annotations = dict(wanted["metadata"]["annotations"])
        current = await self._api.get(kind, name)
        if current is None:
            if used:
                annotations[LAST_USED] = str(int(time.time()))
            body = {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}
            try:
                return await self._api.create(body)
            except AlreadyExists:
                return await self._apply(wanted, used=used)
        recorded = current["metadata"].get("annotations") or {}
        stale = used and _seconds(recorded.get(LAST_USED)) < time.time() - self._options.idle_s / 4
        if recorded.get(SPEC_ANNOTATION) == annotations[SPEC_ANNOTATION] and not stale:
            return current
        change: Object = {"metadata": {"annotations": annotations}, "spec": wanted["spec"]}
        if stale:
            annotations[LAST_USED] = str(int(time.time()))
        try:
            return await self._api.patch(kind, name, change)
        except NotFound:
            return await self._apply(wanted, used=used)

    async def _await_proxy(self, name: str) -> None:
        deadline = time.monotonic() + self._options.egress.start_s
        while True:
            status = ((await self._api.get("deployments", name)) or {}).get("status") or {}
            if status.get("readyReplicas"):
                return
            if time.monotonic() > deadline:
                said = [one.get("message", "") for one in status.get("conditions") or ()]
                raise Unavailable(f"egress proxy {name} is not ready after {self._options.egress.start_s:g} s: {said}")
            await asyncio.sleep(_POLL_S)

    async def _sweep_allowlists(self, used: set[str], dry_run: bool) -> list[Removed]:
        removed = []
        prefix = f"{NetworkClass.ALLOWLIST.value}-"
        for policy in await self._list("networkpolicies", POLICY_COMPONENT):
            meta = policy["metadata"]
            label, last = meta["labels"].get(NETWORK, ""), (meta.get("annotations") or {}).get(LAST_USED)
            idle_s = time.time() - _seconds(last)
            if last is None or not label.startswith(prefix) or label in used or idle_s < self._options.idle_s:
                continue
            owned = await self._owned_by(meta["uid"])
            # The resourceVersion: whoever asked for it in between keeps it.
            if not dry_run and not await self._api.delete(
                "networkpolicies", meta["name"], resource_version=meta["resourceVersion"]
            ):
                continue
            removed.append(Removed("NetworkPolicy", meta["name"], f"no sandbox has used it for {idle_s:.0f} s"))
            for kind, name in owned:  # garbage collection does it too, later
                if not dry_run:
                    await self._api.delete(_KINDS[kind], name)
                removed.append(Removed(kind, name, f"belongs to {meta['name']}"))
            if not dry_run:
                self._held.pop(label, None)
        return removed

    async def _owned_by(self, uid: str) -> list[tuple[str, str]]:
        """Kind and name of an allowlist's proxy objects; uid: of its policy."""
        return [
            (kind, one["metadata"]["name"])
            for kind, component in _PROXY_KINDS
            for one in await self._list(_KINDS[kind], component)
            if uid in {owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()}
        ]

    async def _sweep_probes(self, dry_run: bool) -> list[Removed]:
        removed = []
        probe = self._options.probe
        oldest = time.time() - 4 * (probe.start_s + probe.settle_s)
        for kind, plural in (("Pod", "pods"), ("NetworkPolicy", "networkpolicies")):
            for one in await self._list(plural, PROBE_COMPONENT):
                if _created(one) < oldest:
                    if not dry_run:
                        await self._api.delete(plural, one["metadata"]["name"], grace_s=0)
                    removed.append(Removed(kind, one["metadata"]["name"], "left over from a network probe"))
        return removed

    async def _list(self, kind: str, component: str) -> list[Mapping[str, Any]]:
        return list(await self._api.list(kind, self._place.namespace, self._place.selector(component)))

    async def _probe(self) -> ProbeResult:
        result = await NetworkProbe(self._api, self._place, self._options.probe).run(self._cluster)
        if result.enforced and self._options.probe.keep_s > 0:
            record = {_PROBE_KEY: result.to_json(), f"{_PROBE_KEY}-at": str(int(time.time()))}
            try:
                await self._api.patch("configmaps", str(self._place.owner["name"]), {"data": record})
            except LongshoreError as error:
                log.warning("network probe's result is not shared", error=error.message)
        return result

    async def _recorded_probe(self) -> ProbeResult | None:
        """A probe that passed lately, here or in another replica."""
        record = ((await self._api.get("configmaps", str(self._place.owner["name"]))) or {}).get("data") or {}
        if time.time() - _seconds(record.get(f"{_PROBE_KEY}-at")) > self._options.probe.keep_s:
            return None
        try:
            result = ProbeResult.from_json(record.get(_PROBE_KEY, ""))
        except ValueError:
            return None
        return result if result.enforced else None


def refusals(options: NetworkOptions, cluster: ClusterAddresses, probe: ProbeResult) -> dict[NetworkClass, str]:
    """Why each class that cannot be offered is not."""
    if not probe.enforced and not options.unenforced_allowed:
        why = (
            f"this cluster was not seen to enforce NetworkPolicy ({probe.details}); use a network plugin that does, or"
            " set network.unenforced_allowed to run without isolation"
        )
        return dict.fromkeys(NetworkClass, why)
    found: dict[NetworkClass, str] = {}
    if not options.policy.gateway:
        found[NetworkClass.GATEWAY_ONLY] = "no gateway is set: name its address in network.policy.gateway"
    if not cluster.nodes_known and not options.policy.node_cidrs:
        why = "the nodes' addresses are not known: let the scheduler list nodes, or set network.policy.node_cidrs"
        found |= {NetworkClass.PUBLIC: why, NetworkClass.ALLOWLIST: why}
    return found


def merge(old: ClusterAddresses, new: ClusterAddresses) -> ClusterAddresses:
    """The new addresses, with the old ones where a list could not be read this time."""
    if not new.unknown:
        return new
    kept = {
        name: getattr(new, name) or getattr(old, name) for name in ("nodes", "api_servers", "pods", "services", "dns")
    }
    return replace(new, **kept)


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _created(one: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(one["metadata"]["creationTimestamp"]).timestamp()
