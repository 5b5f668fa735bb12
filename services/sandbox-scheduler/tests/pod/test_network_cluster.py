"""Network isolation on the real cluster, tried from inside pods: what each class reaches, and what it does not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from network_ground import AGENT_PORT, BODY, GATEWAY_PORT, IMAGES, Ground, api_writes, furnished_ground
from public_host import PUBLIC_ADDRESS, public_host

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass
from longshore_sandbox_scheduler.runtimes.pod.egress import EgressOptions
from longshore_sandbox_scheduler.runtimes.pod.network import LAST_USED, NetworkKeeper, NetworkOptions
from longshore_sandbox_scheduler.runtimes.pod.network_policy import Peer, PolicyOptions, policy_name
from longshore_sandbox_scheduler.runtimes.pod.network_probe import NetworkProbe, ProbeOptions, join

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

HOST, OTHER_HOST, INSIDE_HOST = (f"{name}.longshore.test" for name in ("mirror", "other", "inside"))
NONE, GATEWAY, PUBLIC = (
    Network(kind) for kind in (NetworkClass.NO_NETWORK, NetworkClass.GATEWAY_ONLY, NetworkClass.PUBLIC)
)
HOSTS = Network(NetworkClass.ALLOWLIST, hosts=(HOST,))


def options(ground: Ground, **changes: Any) -> NetworkOptions:
    """The operator opens one private address, that of the web server, as for a mirror in the cluster."""
    return replace(
        NetworkOptions(
            policy=PolicyOptions(
                gateway=(Peer(cidr=ground.gateway.split(":")[0]),),
                gateway_port=GATEWAY_PORT,
                allowed_private=(f"{ground.web}/32",),
            ),
            egress=EgressOptions(
                image=IMAGES.proxy,
                host_addresses={HOST: ground.web, OTHER_HOST: ground.web, INSIDE_HOST: "10.96.0.1"},
            ),
            probe=ProbeOptions(image=IMAGES.agent),
        ),
        **changes,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def ground() -> AsyncIterator[Ground]:
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not Path(kubeconfig).is_file():
        pytest.skip("no cluster: make cluster-up, then make test-cluster")
    async with furnished_ground(kubeconfig) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def keeper(ground: Ground) -> NetworkKeeper:
    made = NetworkKeeper(ground.api, ground.place, options(ground))
    await made.start()
    return made


def inner(keeper: NetworkKeeper, ground: Ground) -> dict[str, str]:
    """What no sandbox may reach."""
    cluster = keeper._cluster
    assert cluster.nodes
    assert cluster.api_servers
    assert cluster.dns
    targets = [ground.neighbour, ground.stranger, join(cluster.nodes[0], cluster.kubelet_port)]
    targets += [join(*one) for one in cluster.api_servers] + [join(one, 53) for one in cluster.dns]
    return dict.fromkeys(targets, "closed")


async def test_the_cluster_is_seen_to_enforce_and_nothing_is_left_of_the_probe(
    keeper: NetworkKeeper, ground: Ground
) -> None:
    result = keeper.probe_result
    assert result.enforced, result.details
    assert keeper.supported == frozenset(NetworkClass)
    tried = {one.what for one in result.checks if one.wanted == "closed"}
    assert tried >= {"the API server", "a node", "DNS", "another pod"}
    # What `held` was refused was there: a dialer without restriction reached it.
    reached = {one.target for one in result.checks if one.dialer == "stranger" and one.found == "open"}
    assert {one.target for one in result.checks if one.what == "the API server"} <= reached
    for kind in ("pods", "networkpolicies"):
        await ground.none_left(kind, ground.place.selector("network-probe"))


async def test_a_second_scheduler_does_not_probe_again(keeper: NetworkKeeper, ground: Ground) -> None:
    second = NetworkKeeper(ground.api, ground.place, options(ground, probe=ProbeOptions(image="")))
    await second.start()
    assert second.probe_result == keeper.probe_result


async def test_without_policies_the_probe_says_not_enforced(keeper: NetworkKeeper, ground: Ground) -> None:
    probe = NetworkProbe(ground.outside, ground.unguarded, ProbeOptions(IMAGES.agent, settle_s=3))
    result = await probe.run(keeper._cluster, apply_policies=False)
    assert not result.enforced
    wrong = {one.what for one in result.checks if not one.holds}
    assert wrong == {"another pod", "the API server", "a node", "DNS", "a pod's agent port, as no caller"}


@pytest.mark.parametrize(
    ("network", "gateway"), [(NONE, "closed"), (GATEWAY, "open"), (PUBLIC, "open"), (HOSTS, "open")]
)
@pytest.mark.smoke
async def test_from_inside_only_the_gateways_data_port_is_reached(
    keeper: NetworkKeeper, ground: Ground, network: Network, gateway: str
) -> None:
    expected = {ground.gateway: gateway, **inner(keeper, ground)}
    assert await ground.dial(keeper, network, expected) == expected


async def test_public_addresses_are_reached_by_public_and_by_an_allowlist_that_names_them(
    keeper: NetworkKeeper, ground: Ground
) -> None:
    listed = Network(NetworkClass.ALLOWLIST, cidrs=(f"{PUBLIC_ADDRESS}/32",))
    with public_host() as place:
        for network, wanted in ((PUBLIC, "open"), (listed, "open"), (GATEWAY, "closed")):
            expected = {place: wanted, **inner(keeper, ground)}
            assert await ground.dial(keeper, network, expected) == expected, network


async def test_a_pod_without_network_label_reaches_nothing(keeper: NetworkKeeper, ground: Ground) -> None:
    expected = {ground.gateway: "closed", **inner(keeper, ground)}
    assert await ground.dial_as(ground.place.labels("sandbox"), expected) == expected


async def test_no_task_starts_before_its_policies_hold_even_in_a_burst(keeper: NetworkKeeper, ground: Ground) -> None:
    """Policies of a pod come late, and later when many start; what it connects to until then would stay connected."""
    assert keeper.canaries
    assert await ground.first_look(keeper, GATEWAY, list(inner(keeper, ground)), pods=20) == []


async def test_without_any_policy_all_of_that_is_reached(keeper: NetworkKeeper, ground: Ground) -> None:
    """Else the tests above would pass in a cluster where nothing works."""
    expected = dict.fromkeys([ground.gateway, *inner(keeper, ground)], "open")
    assert await ground.dial_as({"app": "free"}, expected) == expected


async def test_a_cidr_of_an_allowlist_is_reached_directly(keeper: NetworkKeeper, ground: Ground) -> None:
    network = Network(NetworkClass.ALLOWLIST, cidrs=(f"{ground.web}/32",))
    expected = {f"{ground.web}:80": "open", **inner(keeper, ground)}
    assert await ground.dial(keeper, network, expected) == expected
    with pytest.raises(InvalidSpec, match="API server"):
        await keeper.ensure(Network(NetworkClass.ALLOWLIST, cidrs=("10.96.0.1/32",)))


async def test_hosts_go_through_the_proxy_and_no_other_host_does(keeper: NetworkKeeper, ground: Ground) -> None:
    network = Network(NetworkClass.ALLOWLIST, hosts=(HOST, INSIDE_HOST))
    assert BODY in await ground.fetch(keeper, network, f"http://{HOST}/")
    assert "403" in await ground.fetch(keeper, network, f"http://{OTHER_HOST}/")
    assert "403" in await ground.fetch(keeper, network, f"http://{INSIDE_HOST}/")
    direct = await ground.dial(keeper, network, {f"{ground.web}:80": "closed"})
    assert direct == {f"{ground.web}:80": "closed"}, "reached without the proxy"


async def test_a_proxy_serves_only_the_sandboxes_of_its_own_allowlist(keeper: NetworkKeeper, ground: Ground) -> None:
    own, other = HOSTS, Network(NetworkClass.ALLOWLIST, hosts=("else.longshore.test",))
    await keeper.ensure(other)
    selector = ",".join([ground.place.selector("egress-proxy"), f"longshore.dev/network={await keeper.ensure(own)}"])
    (proxy,) = await ground.api.list("pods", ground.place.namespace, selector)
    target = join(proxy["status"]["podIP"], 3128)
    assert await ground.dial(keeper, own, {target: "open"}) == {target: "open"}
    assert await ground.dial(keeper, other, {target: "closed"}) == {target: "closed"}
    assert await ground.dial(keeper, PUBLIC, {target: "closed"}) == {target: "closed"}


async def test_only_callers_reach_an_agent(keeper: NetworkKeeper, ground: Ground) -> None:
    caller = Peer(namespace=ground.outside.namespace, pods={"app": "worker"})
    policy = replace(options(ground).policy, callers=(caller,))
    with_callers = NetworkKeeper(ground.api, replace(ground.place, release="called"), options(ground, policy=policy))
    await with_callers.start()
    label = await with_callers.ensure(NONE)
    agent = await ground.agent(replace(ground.place, release="called").labels("sandbox", network=label))
    expected = {join(agent, AGENT_PORT): "open"}
    assert await ground.dial_as({"app": "worker"}, expected, api=ground.outside) == expected
    refused = {join(agent, AGENT_PORT): "closed"}
    assert await ground.dial_as({"app": "other"}, refused, api=ground.outside) == refused
    assert await ground.dial_as({"app": "worker"}, refused) == refused


async def test_an_allowlist_goes_with_its_proxy_when_no_sandbox_uses_it(keeper: NetworkKeeper, ground: Ground) -> None:
    network = Network(NetworkClass.ALLOWLIST, hosts=("gone.longshore.test",))
    label = await keeper.ensure(network)
    long_ago = {"metadata": {"annotations": {LAST_USED: str(int(time.time()) - 9999)}}}
    await ground.api.patch("networkpolicies", policy_name(ground.place, label), long_ago)
    removed = await keeper.sweep(set())
    assert [one.kind for one in removed] == ["NetworkPolicy", "Deployment", "Service", "NetworkPolicy"]
    for kind in ("networkpolicies", "deployments", "services", "pods"):
        await ground.none_left(kind, f"longshore.dev/network={label}")
    assert BODY in await ground.fetch(keeper, HOSTS, f"http://{HOST}/"), "another allowlist went too"


async def test_sandboxes_cost_no_api_writes(keeper: NetworkKeeper, ground: Ground) -> None:
    await keeper.ensure(HOSTS)
    before = api_writes()
    assert before > 0
    for _ in range(50):
        await keeper.ensure(HOSTS)
        await keeper.ensure(GATEWAY)
    assert api_writes() == before
