"""Policies of sandboxes, judged by an evaluator that shares no code with what writes them."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass
from longshore_sandbox_scheduler.runtimes.pod import network_policy as np
from longshore_sandbox_scheduler.runtimes.pod.address_rules import AddressRules, network
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "longshore-sandboxes", "uid": "u-1"}
PLACE = Placement("sandboxes", "r1", OWNER)
CLUSTER = np.ClusterAddresses(
    nodes=("34.90.1.2", "10.0.0.7"),
    api_servers=(("35.1.2.3", 443), ("10.96.0.1", 443)),
    pods=("44.0.0.0/16", "2600:1900::/48"),
    services=("10.96.0.0/16",),
    dns=("10.96.0.10",),
)
OPTIONS = np.PolicyOptions(
    callers=(np.Peer(namespace="longshore", pods={"app.kubernetes.io/component": "rollout-worker"}),),
    gateway=(np.Peer(cidr="10.4.4.4"),),
    gateway_port=7443,
    proxy_dns=(np.Peer(namespace="kube-system", pods={"k8s-app": "kube-dns"}),),
)
NONE, GATEWAY, PUBLIC = (
    Network(kind) for kind in (NetworkClass.NO_NETWORK, NetworkClass.GATEWAY_ONLY, NetworkClass.PUBLIC)
)
WORKER = ("longshore", {"app.kubernetes.io/component": "rollout-worker"})


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def _peer_is(peer: Mapping[str, Any], address: str, pod: tuple[str, Mapping[str, str]] | None, own: str) -> bool:
    if block := peer.get("ipBlock"):
        ip = ipaddress.ip_address(address)
        inside = ip in ipaddress.ip_network(block["cidr"])
        return inside and not any(ip in ipaddress.ip_network(one) for one in block.get("except", ()))
    if pod is None:
        return False
    namespace, labels = pod
    wanted = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": own}})
    return _selects(wanted, {"kubernetes.io/metadata.name": namespace}) and _selects(peer["podSelector"], labels)


def reachable(
    policies: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    address: str,
    port: int,
    *,
    protocol: str = "TCP",
    pod: tuple[str, Mapping[str, str]] | None = None,
    direction: str = "egress",
) -> bool:
    """What the Kubernetes API reference says of a pod with these labels; other end: an address, perhaps a pod's."""
    kind, key = {"egress": ("Egress", "to"), "ingress": ("Ingress", "from")}[direction]
    chosen = [
        one["spec"]
        for one in policies
        if kind in one["spec"]["policyTypes"] and _selects(one["spec"]["podSelector"], labels)
    ]
    if not chosen:
        return True
    for rule in itertools.chain.from_iterable(spec.get(direction, ()) for spec in chosen):
        ports = rule.get("ports")
        fits = not ports or any(one["protocol"] == protocol and one["port"] == port for one in ports)
        peers = rule.get(key)
        if fits and (not peers or any(_peer_is(one, address, pod, PLACE.namespace) for one in peers)):
            return True
    return False


def policies(*networks: Network, options: np.PolicyOptions = OPTIONS) -> list[np.Object]:
    return [np.default_deny(PLACE), *(np.sandbox_policy(PLACE, one, options, CLUSTER) for one in networks)]


def labels(one: Network) -> dict[str, str]:
    return PLACE.labels("sandbox", network=np.label_of(one))


def allowlist(*cidrs: str, hosts: tuple[str, ...] = ()) -> Network:
    return Network(NetworkClass.ALLOWLIST, cidrs=cidrs, hosts=hosts)


LISTED = allowlist("151.101.0.0/16", hosts=("pypi.org",))
ALL = policies(NONE, GATEWAY, PUBLIC, LISTED)
GATEWAY_AT, PYPI_AT, ELSEWHERE = ("10.4.4.4", 7443), ("151.101.0.223", 443), ("93.184.216.34", 443)


@pytest.mark.parametrize(
    ("one", "opened"),
    [
        (NONE, set()),
        (GATEWAY, {GATEWAY_AT}),
        (LISTED, {GATEWAY_AT, PYPI_AT}),
        (PUBLIC, {GATEWAY_AT, PYPI_AT, ELSEWHERE}),
    ],
)
def test_each_class_reaches_its_own_and_nothing_else(one: Network, opened: set[tuple[str, int]]) -> None:
    others = [("10.4.4.4", 22), ("10.4.4.5", 7443), ("169.254.169.254", 80), ("35.1.2.3", 443), ("10.96.0.1", 443)]
    others += [("34.90.1.2", 10250), ("44.0.1.2", 7409), ("10.96.0.10", 53), ("100.64.0.1", 443), ("127.0.0.1", 1)]
    places = [GATEWAY_AT, PYPI_AT, ELSEWHERE, *others]
    assert {place for place in places if reachable(ALL, labels(one), *place)} == opened


def test_a_pod_without_network_label_reaches_nothing_and_is_reached_by_nobody() -> None:
    bare = PLACE.labels("sandbox")
    for place in (GATEWAY_AT, ELSEWHERE, ("10.96.0.1", 443)):
        assert not reachable(ALL, bare, *place)
    assert not reachable(ALL, bare, "10.1.1.1", 7409, pod=WORKER, direction="ingress")


@pytest.mark.parametrize("one", [NONE, GATEWAY, PUBLIC, LISTED], ids=lambda one: one.kind.value)
def test_only_callers_reach_the_agent_and_only_its_port(one: Network) -> None:
    def called(pod: tuple[str, Mapping[str, str]] | None, port: int = 7409) -> bool:
        return reachable(ALL, labels(one), "44.0.3.3", port, pod=pod, direction="ingress")

    assert called(WORKER)
    assert not called(WORKER, 22)
    assert not called(("elsewhere", WORKER[1]))
    assert not called((PLACE.namespace, labels(one)))
    assert not called(None)


def test_without_callers_nobody_reaches_the_agent() -> None:
    """A rule without peers would mean everybody."""
    silent = policies(PUBLIC, options=np.PolicyOptions())
    assert not reachable(silent, labels(PUBLIC), "44.0.3.3", 7409, pod=WORKER, direction="ingress")


def test_hosts_open_the_proxy_of_that_allowlist_only() -> None:
    other = allowlist(hosts=("example.org",))
    both = policies(LISTED, other)

    def proxy(one: Network) -> tuple[str, dict[str, str]]:
        return PLACE.namespace, PLACE.labels("egress-proxy", network=np.label_of(one))

    assert reachable(both, labels(LISTED), "44.0.9.9", 3128, pod=proxy(LISTED))
    assert not reachable(both, labels(LISTED), "44.0.9.9", 22, pod=proxy(LISTED))
    assert not reachable(both, labels(LISTED), "44.0.9.9", 3128, pod=proxy(other))
    assert not reachable(policies(allowlist("151.101.0.0/16")), labels(allowlist("151.101.0.0/16")), "44.0.9.9", 3128)


def test_proxy_serves_its_sandboxes_and_reaches_public_web_ports_and_dns() -> None:
    own = np.label_of(LISTED)
    rules = [np.default_deny(PLACE), np.proxy_policy(PLACE, "p", own, OPTIONS, CLUSTER)]
    proxy = PLACE.labels("egress-proxy", network=own)
    ask = {"labels": proxy, "address": "44.0.3.3", "port": 3128, "direction": "ingress"}
    assert reachable(rules, **ask, pod=(PLACE.namespace, labels(LISTED)))  # type: ignore[arg-type]
    for stranger in ((PLACE.namespace, labels(PUBLIC)), ("elsewhere", labels(LISTED)), WORKER):
        assert not reachable(rules, **ask, pod=stranger)  # type: ignore[arg-type]
    dns = ("kube-system", {"k8s-app": "kube-dns"})
    assert reachable(rules, proxy, "44.0.0.2", 53, protocol="UDP", pod=dns)
    assert reachable(rules, proxy, *ELSEWHERE)
    assert not reachable(rules, proxy, ELSEWHERE[0], 22)
    for place in (("10.96.0.1", 443), ("34.90.1.2", 443), ("169.254.169.254", 80), ("44.0.1.1", 443)):
        assert not reachable(rules, proxy, *place)


PRIVATE_SEEDS = ["10.0.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.127.255.255", "127.0.0.1"]
PRIVATE_SEEDS += ["0.0.0.0", "255.255.255.255", "34.90.1.2", "35.1.2.3", "44.0.255.255", "::1", "fd00:ec2::254"]
PRIVATE_SEEDS += ["fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2600:1900::1", "2002:a00:1::1", "ff02::1"]


def _near(seed: str) -> st.SearchStrategy[str]:
    whole = ipaddress.ip_address(seed)
    top = (1 << whole.max_prefixlen) - 1
    return st.integers(-(1 << 26), 1 << 26).map(lambda by: str(type(whole)(min(max(int(whole) + by, 0), top))))


addresses = st.one_of(
    st.sampled_from(PRIVATE_SEEDS),
    st.sampled_from(PRIVATE_SEEDS).flatmap(_near),
    st.ip_addresses().map(str),
)
cidrs = st.tuples(addresses, st.integers(0, 128)).map(
    lambda pair: str(
        ipaddress.ip_network((pair[0], min(pair[1], ipaddress.ip_address(pair[0]).max_prefixlen)), strict=False)
    )
)


def must_be_refused(address: str) -> bool:
    """By Python's own registry of special addresses, and by what the cluster said of itself."""
    ip = ipaddress.ip_address(address)
    if any(ip in ipaddress.ip_network(one) for one in (*CLUSTER.pods, *CLUSTER.services, *CLUSTER.nodes)):
        return True
    return not ip.is_global or ip.is_multicast or address in {one for one, _ in CLUSTER.api_servers}


@given(addresses, st.integers(1, 65535), st.sampled_from(["TCP", "UDP"]))
def test_public_never_reaches_what_is_not_public(address: str, port: int, protocol: str) -> None:
    wide = np.PolicyOptions(allowed_private=("10.0.0.0/8", "fd00::/8"))
    rules = policies(PUBLIC, options=wide)
    if must_be_refused(address):
        assert not reachable(rules, labels(PUBLIC), address, port, protocol=protocol)


SPECIAL_THOUGH_GLOBAL = ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")


@given(addresses)
def test_public_reaches_what_is_plainly_public(address: str) -> None:
    ip = ipaddress.ip_address(address)
    transition = [ipaddress.ip_network(one) for one in SPECIAL_THOUGH_GLOBAL]
    outside = ip.version == 6 and ip not in ipaddress.ip_network("2000::/3")
    if must_be_refused(address) or outside or any(ip in one for one in transition):
        return
    assert reachable(policies(PUBLIC), labels(PUBLIC), address, 443)


@given(st.lists(cidrs, min_size=1, max_size=3), addresses)
def test_an_allowlist_is_refused_or_reaches_only_public_addresses_that_it_names(named: list[str], address: str) -> None:
    one = allowlist(*named)
    try:
        rules = policies(one, options=np.PolicyOptions())
    except InvalidSpec:
        return
    if reachable(rules, labels(one), address, 443):
        assert not must_be_refused(address)
        assert any(ipaddress.ip_address(address) in ipaddress.ip_network(cidr) for cidr in named)


@given(st.lists(cidrs, max_size=4), st.lists(cidrs, max_size=4), cidrs, addresses)
def test_blocks_are_exactly_what_the_longest_prefix_says(
    denied: list[str], allowed: list[str], within: str, address: str
) -> None:
    rules = AddressRules(dict.fromkeys(map(network, denied), "x"), frozenset(map(network, allowed)))
    ip = ipaddress.ip_address(address)
    blocks = rules.open_blocks(network(within))
    found = any(ip in block.cidr and not any(ip in one for one in block.without) for block in blocks)
    holding = sorted((one.prefixlen, verdict) for one, verdict in rules.table.items() if ip in one)
    assert found == (ip in ipaddress.ip_network(within) and bool(holding) and holding[-1][1])
    for block in blocks:  # the API server refuses an exception that is no strict part of its CIDR
        assert all(one != block.cidr and one.subnet_of(block.cidr) for one in block.without)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cidr", "what"),
    [
        ("10.3.0.0/16", "private"),
        ("169.254.169.254/32", "metadata"),
        ("0.0.0.0/0", "this host"),
        ("8.0.0.0/6", "private"),
        ("34.90.0.0/16", "node"),
        ("35.1.2.3/32", "API server"),
        ("44.0.7.0/24", "pod"),
        ("::/0", "unique local"),
        ("fd00::/8", "unique local"),
        ("::ffff:a00:0/104", "mapped"),
        ("2002:a00:1::/48", "6to4"),
    ],
)
def test_an_allowlist_that_would_reach_inside_is_refused_with_why(cidr: str, what: str) -> None:
    with pytest.raises(InvalidSpec, match=what) as raised:
        policies(allowlist(cidr))
    assert cidr in raised.value.message
    assert raised.value.field == "network.cidrs"


def test_an_operator_opens_private_addresses_but_a_wide_range_never_opens_the_cluster() -> None:
    wide = np.PolicyOptions(allowed_private=("10.0.0.0/8",))
    one = allowlist("10.0.0.0/8")
    rules = policies(one, options=wide)
    assert reachable(rules, labels(one), "10.20.30.40", 5432)
    for inside in ("10.96.0.1", "10.96.0.10", "10.0.0.7"):
        assert not reachable(rules, labels(one), inside, 443)
    narrow = np.PolicyOptions(allowed_private=("44.0.0.9/32",))
    mirror = allowlist("44.0.0.9/32")
    assert reachable(policies(mirror, options=narrow), labels(mirror), "44.0.0.9", 80)
    with pytest.raises(InvalidSpec, match="pod"):
        policies(allowlist("44.0.0.8/31"), options=narrow)


def test_gateway_can_be_kept_from_sandboxes_with_internet() -> None:
    options = np.PolicyOptions(gateway=OPTIONS.gateway, gateway_port=7443, gateway_beside_internet=False)
    rules = policies(PUBLIC, LISTED, GATEWAY, options=options)
    assert [reachable(rules, labels(one), *GATEWAY_AT) for one in (PUBLIC, LISTED, GATEWAY)] == [False, False, True]


def test_public_asks_only_named_dns_servers_inside() -> None:
    options = np.PolicyOptions(dns=(np.Peer(cidr="10.96.0.10"),))
    rules = policies(PUBLIC, options=options)
    assert reachable(rules, labels(PUBLIC), "10.96.0.10", 53, protocol="UDP")
    assert not reachable(rules, labels(PUBLIC), "10.96.0.10", 443)
    assert not reachable(rules, labels(PUBLIC), "10.96.0.11", 53, protocol="UDP")


def test_labels_name_content_and_fit_kubernetes() -> None:
    same = allowlist("151.101.0.0/16", "8.8.8.8/32", hosts=("b.example", "a.example"))
    turned = allowlist("8.8.8.8/32", "151.101.0.0/16", hosts=("a.example", "b.example"))
    assert np.label_of(same) == np.label_of(turned) != np.label_of(LISTED)
    assert np.label_of(GATEWAY) == "gateway-only"
    assert len(np.label_of(same)) <= 63


def test_changed_options_change_the_recorded_hash_and_nothing_else_does() -> None:
    def hashed(options: np.PolicyOptions) -> str:
        return str(np.sandbox_policy(PLACE, GATEWAY, options, CLUSTER)["metadata"]["annotations"][np.SPEC_ANNOTATION])

    moved = np.PolicyOptions(callers=OPTIONS.callers, gateway=(np.Peer(cidr="10.4.4.5"),), gateway_port=7443)
    assert hashed(OPTIONS) == hashed(OPTIONS) != hashed(moved)


def test_objects_are_owned_and_labelled() -> None:
    for policy in [*ALL, np.proxy_policy(PLACE, "p", "allowlist-x", OPTIONS, CLUSTER)]:
        meta = policy["metadata"]
        assert meta["ownerReferences"] == [OWNER]
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "longshore"
        assert meta["labels"]["longshore.dev/release"] == "r1"


@pytest.mark.parametrize("given_", [{}, {"cidr": "10.0.0.0/8", "namespace": "x"}, {"cidr": "10.0.0.1/8"}])
def test_a_peer_is_a_cidr_or_a_selector(given_: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec):
        np.Peer(**given_)  # type: ignore[arg-type]


def test_a_gateway_without_port_would_open_all_its_ports_and_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="gateway_port"):
        np.PolicyOptions(gateway=(np.Peer(cidr="10.4.4.4"),))


def test_the_proxy_gets_the_same_table() -> None:
    flag = np.address_rules(np.PolicyOptions(allowed_private=("10.9.0.0/16",)), CLUSTER).as_flag()
    for part in ("allow:0.0.0.0/0", "deny:10.0.0.0/8", "allow:10.9.0.0/16", "deny:44.0.0.0/16", "deny:::/0"):
        assert part in flag.split(",")
