"""The network keeper over objects in memory: what it writes, when it refuses, what it sweeps."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_objects import FakeObjects

from longshore_common.errors import InvalidSpec, QuotaExceeded, Unavailable
from longshore_sandbox_scheduler.domain.model import Network, NetworkClass
from longshore_sandbox_scheduler.runtimes.pod.egress import EgressOptions
from longshore_sandbox_scheduler.runtimes.pod.network import LAST_USED, NetworkKeeper, NetworkOptions
from longshore_sandbox_scheduler.runtimes.pod.network_policy import (
    ClusterAddresses,
    Peer,
    PolicyOptions,
    policy_name,
)
from longshore_sandbox_scheduler.runtimes.pod.network_probe import (
    Check,
    NetworkProbe,
    ProbeOptions,
    ProbeResult,
    dial_plan,
    judge,
)
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "longshore-sandboxes", "uid": "u-1"}
PLACE = Placement("sandboxes", "r1", OWNER)
GATEWAY = Network(NetworkClass.GATEWAY_ONLY)
HOSTS = Network(NetworkClass.ALLOWLIST, cidrs=("8.8.8.0/24",), hosts=("pypi.org", "*.pythonhosted.org"))
PASSED = ProbeResult(True, 1.5)
OPTIONS = NetworkOptions(
    policy=PolicyOptions(gateway=(Peer(cidr="10.4.4.4"),), gateway_port=7443),
    egress=EgressOptions(image="egress:dev"),
)


@pytest.fixture
def objects() -> FakeObjects:
    fake = FakeObjects()
    fake.stored["configmaps", "longshore-sandboxes"] = {"metadata": {"name": "longshore-sandboxes", "labels": {}}}
    fake.elsewhere["nodes", ""] = [
        {
            "metadata": {"name": "n1"},
            "spec": {"podCIDRs": ["10.244.0.0/16"]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "34.90.1.2"}, {"type": "Hostname", "address": "n1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
            },
        }
    ]
    fake.elsewhere["services", "default"] = [
        {"metadata": {"name": "kubernetes"}, "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 443}]}}
    ]

    def like_a_server(kind: str, body: dict[str, Any]) -> None:
        if kind == "services":
            body["spec"]["clusterIP"] = "10.96.7.7"
        if kind == "deployments":
            body["status"] = {"readyReplicas": 1}

    fake.on_create = like_a_server
    return fake


class Probes(list[ProbeResult]):
    """Results of the next probes, the last one stays."""

    ran = 0


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> Probes:
    """Stands for the probe, which is tested on the real cluster."""
    results = Probes([PASSED])

    async def run(self: NetworkProbe, cluster: ClusterAddresses, *, apply_policies: bool = True) -> ProbeResult:
        results.ran += 1
        return results[0] if len(results) == 1 else results.pop(0)

    monkeypatch.setattr(NetworkProbe, "run", run)
    return results


async def started(objects: FakeObjects, options: NetworkOptions = OPTIONS) -> NetworkKeeper:
    keeper = NetworkKeeper(objects, PLACE, options)
    await keeper.start()
    return keeper


async def test_a_thousand_sandboxes_cost_the_writes_of_one(objects: FakeObjects, probed: Probes) -> None:
    keeper = await started(objects)
    for network in (GATEWAY, HOSTS):
        await keeper.ensure(network)
    before = list(objects.writes)
    for _ in range(1000):
        assert await keeper.ensure(GATEWAY) == "gateway-only"
        await keeper.ensure(HOSTS)
    other = await started(objects)
    await other.ensure(GATEWAY)
    await other.ensure(HOSTS)
    assert objects.writes == before
    assert other.proxy_env(HOSTS) == keeper.proxy_env(HOSTS)


async def test_changed_options_change_the_policy_once(objects: FakeObjects, probed: Probes) -> None:
    await (await started(objects)).ensure(GATEWAY)
    moved = replace(OPTIONS, policy=PolicyOptions(gateway=(Peer(cidr="10.4.4.5"),), gateway_port=7443))
    keeper = await started(objects, moved)
    before = len(objects.writes)
    await keeper.ensure(GATEWAY)
    await keeper.ensure(GATEWAY)
    name = policy_name(PLACE, "gateway-only")
    assert objects.writes[before:] == [("patch", "networkpolicies", name)]
    egress = objects.stored["networkpolicies", name]["spec"]["egress"]
    assert egress[0]["to"] == [{"ipBlock": {"cidr": "10.4.4.5/32"}}]


async def test_a_policy_that_somebody_deleted_comes_back(objects: FakeObjects, probed: Probes) -> None:
    keeper = await started(objects, replace(OPTIONS, recheck_s=-1.0))
    await keeper.ensure(GATEWAY)
    await objects.delete("networkpolicies", policy_name(PLACE, "gateway-only"))
    await keeper.ensure(GATEWAY)
    assert policy_name(PLACE, "gateway-only") in objects.named("networkpolicies")


async def test_a_replica_that_created_it_first_is_no_error(objects: FakeObjects, probed: Probes) -> None:
    first, second = await started(objects), await started(objects)
    get = objects.get

    async def late_get(kind: str, name: str) -> Any:
        found = await get(kind, name)
        if name == policy_name(PLACE, "gateway-only") and found is None:
            objects.get = get  # type: ignore[method-assign]
            await first.ensure(GATEWAY)
        return found

    objects.get = late_get  # type: ignore[assignment]
    assert await second.ensure(GATEWAY) == "gateway-only"


async def test_hosts_get_a_proxy_of_their_own_and_its_environment(objects: FakeObjects, probed: Probes) -> None:
    keeper = await started(objects)
    with pytest.raises(Unavailable, match="ensure"):
        keeper.proxy_env(HOSTS)
    label = await keeper.ensure(HOSTS)
    env = keeper.proxy_env(HOSTS)
    assert env["HTTPS_PROXY"] == env["http_proxy"] == "http://10.96.7.7:3128"
    assert {"8.8.8.0/24", "10.4.4.4", "127.0.0.1"} <= set(env["NO_PROXY"].split(","))
    assert keeper.proxy_env(GATEWAY) == {}
    (name,) = objects.named("deployments")
    deployment = objects.stored["deployments", name]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"-allow-host=pypi.org", "-allow-host=*.pythonhosted.org"} <= set(arguments)
    assert "deny:34.90.1.2/32" in next(one for one in arguments if one.startswith("-addresses="))
    anchor = objects.stored["networkpolicies", policy_name(PLACE, label)]
    for kind in ("deployments", "services"):
        ((owner),) = objects.stored[kind, name]["metadata"]["ownerReferences"]
        assert owner["uid"] == anchor["metadata"]["uid"]


async def test_no_proxy_image_no_hosts(objects: FakeObjects, probed: Probes) -> None:
    keeper = await started(objects, replace(OPTIONS, egress=EgressOptions()))
    with pytest.raises(InvalidSpec, match=r"network\.egress\.image"):
        await keeper.ensure(HOSTS)


async def test_a_proxy_that_does_not_start_says_why(objects: FakeObjects, probed: Probes) -> None:
    objects.on_create = lambda kind, body: body.update(
        {
            "services": {"spec": {"clusterIP": "10.96.7.7"}},
            "deployments": {"status": {"conditions": [{"message": "no room"}]}},
        }.get(kind, {})
    )
    keeper = await started(objects, replace(OPTIONS, egress=EgressOptions(image="x", start_s=0.0)))
    with pytest.raises(Unavailable, match="no room"):
        await keeper.ensure(HOSTS)


async def test_sweep_takes_idle_allowlists_with_their_proxies_and_nothing_else(
    objects: FakeObjects, probed: Probes
) -> None:
    keeper = await started(objects)
    label = await keeper.ensure(HOSTS)
    await keeper.ensure(GATEWAY)
    assert await keeper.sweep(set()) == [], "too young"
    _age(objects, label)
    assert await keeper.sweep({label}) == [], "in use"
    found = await keeper.sweep(set(), dry_run=True)
    assert [one.kind for one in found] == ["NetworkPolicy", "Deployment", "Service", "NetworkPolicy"]
    assert label in {
        objects.stored["deployments", name]["metadata"]["labels"]["longshore.dev/network"]
        for name in objects.named("deployments")
    }
    assert await keeper.sweep(set()) == found
    assert objects.named("deployments") == objects.named("services") == set()
    assert objects.named("networkpolicies") == {policy_name(PLACE, "gateway-only"), policy_name(PLACE, "default-deny")}
    await keeper.ensure(HOSTS)
    assert len(objects.named("deployments")) == 1


async def test_sweep_leaves_what_another_replica_asked_for_in_between(objects: FakeObjects, probed: Probes) -> None:
    keeper, other = await started(objects), await started(objects)
    label = await keeper.ensure(HOSTS)
    _age(objects, label)
    delete = objects.delete

    async def after_other(kind: str, name: str, **more: Any) -> bool:
        await other.ensure(HOSTS)
        return await delete(kind, name, **more)

    objects.delete = after_other  # type: ignore[method-assign]
    assert await keeper.sweep(set()) == []
    assert policy_name(PLACE, label) in objects.named("networkpolicies")
    assert len(objects.named("deployments")) == 1


async def test_sweep_brings_addresses_of_new_nodes_into_policies(objects: FakeObjects, probed: Probes) -> None:
    public = Network(NetworkClass.PUBLIC)
    keeper = await started(objects, replace(OPTIONS, rediscover_s=-1.0))
    await keeper.ensure(public)
    objects.elsewhere["nodes", ""] = [
        *objects.elsewhere["nodes", ""],
        {"metadata": {"name": "n2"}, "status": {"addresses": [{"type": "ExternalIP", "address": "34.90.9.9"}]}},
    ]
    await keeper.sweep({"public"})
    assert "34.90.9.9/32" in str(objects.stored["networkpolicies", policy_name(PLACE, "public")]["spec"])
    objects.forbidden = {"nodes"}
    await keeper.sweep({"public"})
    assert "34.90.9.9/32" in str(objects.stored["networkpolicies", policy_name(PLACE, "public")]["spec"])


async def test_sweep_takes_left_over_probes(objects: FakeObjects, probed: Probes) -> None:
    keeper = await started(objects)
    for kind, name in (("Pod", "old"), ("Pod", "young"), ("NetworkPolicy", "old")):
        await objects.create(
            {"kind": kind, "metadata": {"name": name, "labels": PLACE.labels("network-probe")}, "spec": {}}
        )
    for kind in ("pods", "networkpolicies"):
        objects.stored[kind, "old"]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    removed = await keeper.sweep(set())
    assert [(one.kind, one.name) for one in removed] == [("Pod", "old"), ("NetworkPolicy", "old")]
    assert objects.named("pods") == {"young"}


async def test_nothing_is_offered_where_policies_do_not_hold(objects: FakeObjects, probed: Probes) -> None:
    probed[:] = [ProbeResult(False, checks=(Check("held", "the API server", "10.96.0.1:443", "closed", "open"),))]
    keeper = await started(objects)
    assert keeper.supported == frozenset()
    for kind in (NetworkClass.NO_NETWORK, NetworkClass.GATEWAY_ONLY, NetworkClass.PUBLIC):
        with pytest.raises(InvalidSpec, match=r"API server.*unenforced_allowed"):
            await keeper.ensure(Network(kind))
    forced = await started(objects, replace(OPTIONS, unenforced_allowed=True))
    assert forced.supported == frozenset(NetworkClass)
    assert not forced.probe_result.enforced


async def test_a_passed_probe_is_shared_and_a_failed_one_is_not(objects: FakeObjects, probed: Probes) -> None:
    probed[:] = [ProbeResult(False, problem="quota"), PASSED]
    assert (await started(objects)).supported == frozenset()
    assert (await started(objects)).probe_result.late_s == 1.5
    assert (await started(objects)).probe_result == PASSED
    assert probed.ran == 2
    objects.stored["configmaps", "longshore-sandboxes"]["data"]["network-probe-at"] = str(int(time.time()) - 86400)
    await started(objects)
    assert probed.ran == 3


@pytest.mark.parametrize("garbage", ["", "{}", "[]", "null", '{"enforced": true, "checks": [{"x": 1}]}'])
async def test_a_record_that_is_no_probe_result_is_not_believed(
    objects: FakeObjects, probed: Probes, garbage: str
) -> None:
    data = {"network-probe": garbage, "network-probe-at": str(int(time.time()))}
    objects.stored["configmaps", "longshore-sandboxes"]["data"] = data
    await started(objects)
    assert probed.ran == 1


async def test_classes_that_need_what_is_not_known_are_refused_with_what_to_set(
    objects: FakeObjects, probed: Probes
) -> None:
    objects.forbidden = {"nodes"}
    keeper = await started(objects, NetworkOptions())
    assert keeper.supported == {NetworkClass.NO_NETWORK}
    assert "node_cidrs" in keeper.refusals[NetworkClass.PUBLIC]
    assert "policy.gateway" in keeper.refusals[NetworkClass.GATEWAY_ONLY]
    told = NetworkOptions(policy=PolicyOptions(node_cidrs=("34.90.0.0/16",)))
    assert NetworkClass.PUBLIC in (await started(objects, told)).supported


async def test_before_start_nothing_is_offered(objects: FakeObjects) -> None:
    keeper = NetworkKeeper(objects, PLACE, OPTIONS)
    assert keeper.supported == frozenset()
    with pytest.raises(InvalidSpec):
        await keeper.ensure(Network())


def test_idle_time_is_longer_than_what_other_replicas_believe() -> None:
    with pytest.raises(InvalidSpec, match="idle_s"):
        NetworkOptions(idle_s=100, recheck_s=60)


def _age(objects: FakeObjects, label: str) -> None:
    meta = objects.stored["networkpolicies", policy_name(PLACE, label)]["metadata"]
    meta["annotations"][LAST_USED] = str(int(time.time()) - 10_000)


CLUSTER = ClusterAddresses(
    nodes=("10.0.0.7",), api_servers=(("10.96.0.1", 443), ("10.0.0.2", 6443)), dns=("10.96.0.10",)
)
PLAN = dial_plan({"target": "10.1.0.1:7409", "other": "10.1.0.2:7409"}, CLUSTER)


def _lines(role: str, **opened: bool) -> str:
    """Tries that go as wanted, but for the named targets' (by their first word)."""
    lines = []
    for target in PLAN[role]:
        is_open = opened.get(target.address.replace(".", "_").replace(":", "_"), target.wanted == "open")
        lines.append(
            f'{{"target": "{target.address}", "open": {str(is_open).lower()}, "error": "", "ms": 1, "at_ms": 5}}'
        )
    return "\n".join(lines)


def test_the_plan_tries_every_way_into_the_cluster() -> None:
    tried = {(one.what, one.address): one.wanted for one in PLAN["held"]}
    assert tried == {
        ("the allowed pod", "10.1.0.1:7409"): "open",
        ("another pod", "10.1.0.2:7409"): "closed",
        ("the API server", "10.96.0.1:443"): "closed",
        ("the API server", "10.0.0.2:6443"): "closed",
        ("a node", "10.0.0.7:10250"): "closed",
        ("DNS", "10.96.0.10:53"): "closed",
    }
    assert [one.wanted for one in PLAN["stranger"][:2]] == ["closed", "open"]


def test_enforced_when_everything_is_as_wanted_at_last_and_how_late() -> None:
    early = '{"target": "10.1.0.2:7409", "open": true, "error": "", "ms": 1, "at_ms": 1750}\n'
    result = judge(PLAN, {"held": early + _lines("held"), "stranger": _lines("stranger")})
    assert result.enforced
    assert result.late_s == 1.75
    assert result.details == ""
    assert ProbeResult.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("role", "target", "is_open"),
    [
        ("held", "10_1_0_1_7409", False),
        ("held", "10_1_0_2_7409", True),
        ("held", "10_96_0_1_443", True),
        ("held", "10_0_0_7_10250", True),
        ("held", "10_96_0_10_53", True),
        ("stranger", "10_1_0_1_7409", True),
        ("stranger", "10_1_0_2_7409", False),
    ],
)
def test_one_thing_not_as_wanted_is_not_enforced(role: str, target: str, is_open: bool) -> None:
    outputs = {"held": _lines("held"), "stranger": _lines("stranger")}
    result = judge(PLAN, {**outputs, role: _lines(role, **{target: is_open})})
    assert not result.enforced
    assert role in result.details


@pytest.mark.parametrize("output", ["", "garbage\n{}\n[1]\n", '{"target": "10.1.0.1:7409", "open": true, "at_ms": 1}'])
def test_a_dialer_that_says_nothing_proves_nothing(output: str) -> None:
    result = judge(PLAN, {"held": output, "stranger": _lines("stranger")})
    assert not result.enforced
    assert "did not say" in result.details


async def test_canaries_are_what_is_there_and_refused(objects: FakeObjects, probed: Probes) -> None:
    there = _lines("stranger", **{"10_96_0_1_443": True, "10_96_0_10_53": True})
    seen = judge(PLAN, {"held": _lines("held"), "stranger": there})
    assert seen.canaries == ("10.96.0.1:443",)
    probed[:] = [seen]
    assert (await started(objects)).canaries == ("10.96.0.1:443",)
    del objects.stored["configmaps", "longshore-sandboxes"]["data"]
    probed[:] = [judge(PLAN, {"held": _lines("held", **{"10_96_0_1_443": True}), "stranger": there})]
    unenforced = await started(objects, replace(OPTIONS, unenforced_allowed=True))
    assert unenforced.canaries == (), "no sandbox would ever start"


async def test_a_probe_that_cannot_run_says_why_and_leaves_nothing(objects: FakeObjects) -> None:
    def refuse(kind: str, body: dict[str, Any]) -> None:
        if kind == "pods":
            raise QuotaExceeded("exceeded quota: pods=0", which="pods")

    objects.on_create = refuse
    result = await NetworkProbe(objects, PLACE, ProbeOptions(image="agent:dev")).run(CLUSTER)
    assert not result.enforced
    assert "exceeded quota" in result.details
    assert objects.named("networkpolicies") == objects.named("pods") == set()


async def test_a_probe_whose_pods_never_start_ends_and_says_their_state(objects: FakeObjects) -> None:
    def stuck(kind: str, body: dict[str, Any]) -> None:
        waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": "absent"}}
        body["status"] = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}

    objects.on_create = stuck
    options = ProbeOptions(image="agent:dev", start_s=0.2, settle_s=0.1)
    result = await NetworkProbe(objects, PLACE, options).run(CLUSTER)
    assert "ErrImageNeverPull" in result.details
    assert objects.named("networkpolicies") == objects.named("pods") == set()


async def test_without_an_image_the_probe_says_so(objects: FakeObjects) -> None:
    result = await NetworkProbe(objects, PLACE, ProbeOptions()).run(CLUSTER)
    assert not result.enforced
    assert "image" in result.details
