"""NetworkPolicies of sandboxes: one per class or allowlist, never one per sandbox. Pure; `network` applies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass
from longshore_sandbox_scheduler.runtimes.pod.address_rules import AddressRules, IpNetwork, network
from longshore_sandbox_scheduler.runtimes.pod.placement import MANAGED_BY, MANAGER, Placement

POLICY_COMPONENT = "network-policy"
SANDBOX_COMPONENT = "sandbox"
PROXY_COMPONENT = "egress-proxy"
PROXY_PORT = 3128
SPEC_ANNOTATION = "longshore.dev/spec"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_DNS_PORT = 53
_ANYWHERE = ("0.0.0.0/0", "::/0")

Object = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """Whom a rule is about: a CIDR, or the pods with `pods` labels in `namespace` (empty: the sandboxes' own).

    A Service's cluster IP is no peer: policies see the pod behind it.
    """

    cidr: str = ""
    namespace: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.cidr) == bool(self.namespace or self.pods):
            raise InvalidSpec("a network peer is either a cidr, or a namespace and pod labels", field="network.peer")
        if self.cidr:
            object.__setattr__(self, "cidr", str(network(self.cidr)))

    def rule(self) -> Object:
        """The NetworkPolicyPeer."""
        if self.cidr:
            return {"ipBlock": {"cidr": self.cidr}}
        pods: Object = {"podSelector": {"matchLabels": dict(self.pods)}}
        if self.namespace:
            pods["namespaceSelector"] = {"matchLabels": {_NAMESPACE_NAME: self.namespace}}
        return pods


@dataclass(frozen=True)
class PolicyOptions:
    """What an operator says of the network around sandboxes."""

    callers: tuple[Peer, ...] = ()
    """Who may call agents: rollout workers, the verifier, the scheduler. Nodes are let in by most CNIs anyway."""
    agent_port: int = 7409
    gateway: tuple[Peer, ...] = ()
    """Where the inference gateway's data port is; none: `gateway-only` is not offered."""
    gateway_port: int = 0
    gateway_beside_internet: bool = True
    """Whether `allowlist` and `public` sandboxes reach the gateway too; a harness inside them needs it."""
    dns: tuple[Peer, ...] = ()
    """DNS servers of `public` sandboxes inside the cluster. Servers on public addresses need no entry."""
    proxy_dns: tuple[Peer, ...] = ()
    """DNS servers of the egress proxy; none: the cluster's own."""
    blocked: tuple[str, ...] = ()
    """CIDRs that no sandbox reaches, beside what is private and what is found of the cluster."""
    node_cidrs: tuple[str, ...] = ()
    """Where nodes and API servers have their addresses, for a scheduler that may not list nodes."""
    allowed_private: tuple[str, ...] = ()
    """CIDRs that allowlists and the egress proxy may reach although they are private."""
    proxy_tls_ports: tuple[int, ...] = (443,)
    proxy_http_ports: tuple[int, ...] = (80,)

    def __post_init__(self) -> None:
        if self.gateway and not 0 < self.gateway_port < 65536:
            raise InvalidSpec("a gateway peer needs gateway_port, its data port", field="network.gateway_port")
        for text in (*self.blocked, *self.node_cidrs, *self.allowed_private):
            network(text)


@dataclass(frozen=True)
class ClusterAddresses:
    """The cluster's own addresses, as far as they could be found."""

    nodes: tuple[str, ...] = ()
    api_servers: tuple[tuple[str, int], ...] = ()
    pods: tuple[str, ...] = ()
    """Pod CIDRs."""
    services: tuple[str, ...] = ()
    """Service CIDRs."""
    dns: tuple[str, ...] = ()
    """Addresses of cluster DNS servers: the Service's and those behind it."""
    kubelet_port: int = 10250
    unknown: tuple[str, ...] = ()
    """What could not be found, and why."""

    @property
    def nodes_known(self) -> bool:
        """Whether the nodes' addresses were found."""
        return bool(self.nodes)

    @property
    def ipv6(self) -> bool:
        """Whether pods may have IPv6 addresses."""
        return any(network(text).version == 6 for text in (*self.pods, *self.services, *self.nodes))

    def owned(self) -> dict[IpNetwork, str]:
        """Each address range of the cluster, and what it is."""
        named = {
            "a pod of this cluster": self.pods,
            "a Service of this cluster": self.services,
            "a node of this cluster": self.nodes,
            "the API server": tuple(address for address, _ in self.api_servers),
        }
        return {network(text): what for what, texts in named.items() for text in texts}


def address_rules(options: PolicyOptions, cluster: ClusterAddresses) -> AddressRules:
    """What sandboxes of this cluster may reach on the whole."""
    blocked = {network(text): "blocked by the operator" for text in options.blocked}
    blocked |= {network(text): "nodes of this cluster" for text in options.node_cidrs}
    return AddressRules({**blocked, **cluster.owned()}, frozenset(network(text) for text in options.allowed_private))


def label_of(wanted: Network) -> str:
    """Value of the network label: the class, or the allowlist by its content."""
    if wanted.kind is not NetworkClass.ALLOWLIST:
        return wanted.kind.value
    content = digest([list(wanted.cidrs), list(wanted.hosts)]).removeprefix("sha256:")
    return f"{wanted.kind.value}-{content[:16]}"


def check_allowlist(wanted: Network, rules: AddressRules) -> None:
    """Raises InvalidSpec for a CIDR with private, metadata or cluster addresses that the operator did not open."""
    for cidr in wanted.cidrs:
        if why := rules.refused_in(network(cidr)):
            raise InvalidSpec(
                f"network.cidrs: {cidr} would reach {why}; name only public addresses, or have the operator add it to"
                " allowed_private",
                field="network.cidrs",
            )


def sandbox_policy(place: Placement, wanted: Network, options: PolicyOptions, cluster: ClusterAddresses) -> Object:
    """The policy of all sandboxes with one network label. Raises InvalidSpec (see check_allowlist)."""
    rules = address_rules(options, cluster)
    check_allowlist(wanted, rules)
    label = label_of(wanted)
    return _policy(
        place,
        policy_name(place, label),
        place.labels(POLICY_COMPONENT, network=label),
        {"matchLabels": place.labels(SANDBOX_COMPONENT, network=label)},
        _rules("from", [peer.rule() for peer in options.callers], _ports("TCP", options.agent_port)),
        _egress(place, wanted, options, cluster, rules),
    )


def default_deny(place: Placement) -> Object:
    """Whatever we start in the sandbox namespace reaches nothing until another policy lets it."""
    return _policy(
        place,
        policy_name(place, "default-deny"),
        place.labels(POLICY_COMPONENT),
        {"matchLabels": {MANAGED_BY: MANAGER}},
        [],
        [],
    )


def proxy_policy(place: Placement, name: str, label: str, options: PolicyOptions, cluster: ClusterAddresses) -> Object:
    """The egress proxy of one allowlist: called by its sandboxes only, reaches DNS and public addresses."""
    rules = address_rules(options, cluster)
    dns = [peer.rule() for peer in options.proxy_dns or tuple(Peer(cidr=one) for one in cluster.dns)]
    ports = _ports("TCP", *options.proxy_tls_ports, *options.proxy_http_ports)
    sandboxes = {"podSelector": {"matchLabels": place.labels(SANDBOX_COMPONENT, network=label)}}
    return _policy(
        place,
        name,
        place.labels(POLICY_COMPONENT, network=label),
        {"matchLabels": place.labels(PROXY_COMPONENT, network=label)},
        _rules("from", [sandboxes], _ports("TCP", PROXY_PORT)),
        _rules("to", dns, _dns_ports()) + _rules("to", _everywhere(rules, cluster), ports),
    )


def policy_name(place: Placement, label: str) -> str:
    """Name of the policy of a network label."""
    return f"longshore-{place.release}-{label}"


def _egress(
    place: Placement, wanted: Network, options: PolicyOptions, cluster: ClusterAddresses, rules: AddressRules
) -> list[Object]:
    gateway = _rules("to", [peer.rule() for peer in options.gateway], _ports("TCP", options.gateway_port))
    beside = gateway if options.gateway_beside_internet else []
    if wanted.kind is NetworkClass.GATEWAY_ONLY:
        return gateway
    if wanted.kind is NetworkClass.ALLOWLIST:
        named = _blocks(rules, (network(cidr) for cidr in wanted.cidrs))
        return beside + _rules("to", named) + _to_proxy(place, wanted)
    if wanted.kind is NetworkClass.PUBLIC:
        dns = _rules("to", [peer.rule() for peer in options.dns], _dns_ports())
        return beside + dns + _rules("to", _everywhere(rules.without_allowed(), cluster))
    return []


def _to_proxy(place: Placement, wanted: Network) -> list[Object]:
    if not wanted.hosts:
        return []
    proxy = {"podSelector": {"matchLabels": place.labels(PROXY_COMPONENT, network=label_of(wanted))}}
    return _rules("to", [proxy], _ports("TCP", PROXY_PORT))


def _everywhere(rules: AddressRules, cluster: ClusterAddresses) -> list[Object]:
    families = _ANYWHERE if cluster.ipv6 else _ANYWHERE[:1]
    return _blocks(rules, (network(text) for text in families))


def _blocks(rules: AddressRules, within: Iterable[IpNetwork]) -> list[Object]:
    found = {block for one in within for block in rules.open_blocks(one)}
    blocks = []
    for block in sorted(found, key=lambda one: (one.cidr.version, int(one.cidr.network_address), one.cidr.prefixlen)):
        rule: Object = {"cidr": str(block.cidr)}
        if block.without:
            rule["except"] = [str(one) for one in block.without]
        blocks.append({"ipBlock": rule})
    return blocks


def _rules(direction: str, peers: Sequence[Object], ports: Sequence[Object] = ()) -> list[Object]:
    """At most one rule. Kubernetes reads a rule without peers as "everybody", so none is ever written."""
    if not peers:
        return []
    return [{direction: list(peers), **({"ports": list(ports)} if ports else {})}]


def _ports(protocol: str, *numbers: int) -> list[Object]:
    return [{"protocol": protocol, "port": number} for number in dict.fromkeys(numbers)]


def _dns_ports() -> list[Object]:
    return _ports("UDP", _DNS_PORT) + _ports("TCP", _DNS_PORT)


def _policy(
    place: Placement,
    name: str,
    labels: Mapping[str, str],
    selector: Object,
    ingress: list[Object],
    egress: list[Object],
) -> Object:
    spec: Object = {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": dict(labels),
            "annotations": {SPEC_ANNOTATION: digest(spec).removeprefix("sha256:")[:20]},
            "ownerReferences": [dict(place.owner)],
        },
        "spec": spec,
    }
