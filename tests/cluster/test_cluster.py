"""The test cluster does what sandboxes rely on: otherwise the tests on it would prove nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from kubectl import BUSYBOX, DEBIAN, FOREVER, Kubectl, Refused, fresh_namespace, pod, until

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("cluster")
SLEEP = ("sleep", "3600")
FETCH = 'exec 3<>"/dev/tcp/$0/8080" && printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3 && cat <&3'
SERVE = (
    "busybox",
    "sh",
    "-c",
    "busybox mkdir /www && echo served >/www/index.html && busybox httpd -f -p 8080 -h /www",
)


def fetch(kubectl: Kubectl, client: str, host: str) -> str:
    """What a pod gets from a web server, or what came in the way."""
    try:
        return kubectl.exec(client, "timeout", "3", "bash", "-c", FETCH, host)
    except Refused as error:
        return str(error)


def policy(name: str, chosen: str, **rules: Any) -> dict[str, Any]:
    spec = {"podSelector": {"matchLabels": {"app": chosen}}, **rules}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def web(kubectl: Kubectl) -> dict[str, str]:
    """A web server behind a Service, one more without policies, and a client `client`; their addresses by name."""
    port = {"port": 8080}
    service = {"selector": {"app": "web"}, "ports": [port]}
    kubectl.apply(
        pod("web", SERVE, labels={"app": "web"}),
        pod("plain", SERVE, labels={"app": "plain"}),
        pod("client", SLEEP, DEBIAN, labels={"app": "client"}),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service},
    )
    kubectl.running("client")
    return {name: kubectl.running(name)["status"]["podIP"] for name in ("web", "plain")}


@pytest.mark.parametrize("image", [BUSYBOX, DEBIAN])
def test_a_pod_starts_and_commands_run_in_it(kubectl: Kubectl, image: str) -> None:
    name = f"plain-{image.split('/')[-1].split(':')[0]}"
    kubectl.apply(pod(name, FOREVER if image == BUSYBOX else SLEEP, image))
    kubectl.running(name)
    shell = ("busybox", "sh") if image == BUSYBOX else ("bash",)
    assert kubectl.exec(name, *shell, "-c", "echo $((6 * 7))") == "42\n"
    with pytest.raises(Refused, match="exit code 3"):
        kubectl.exec(name, *shell, "-c", "exit 3")


def test_names_and_services_lead_to_pods(kubectl: Kubectl, web: dict[str, str]) -> None:
    until(lambda: "served" in fetch(kubectl, "client", "web"), "the Service by its name")
    assert "served" in fetch(kubectl, "client", f"web.{kubectl.namespace}.svc.cluster.local")
    assert "served" in fetch(kubectl, "client", kubectl.get("service", "web")["spec"]["clusterIP"])
    assert "served" in fetch(kubectl, "client", web["web"])


def test_policies_hold_what_comes_in(kubectl: Kubectl, web: dict[str, str]) -> None:
    until(lambda: "served" in fetch(kubectl, "client", web["web"]), "open before")
    kubectl.apply(policy("in", "web", policyTypes=["Ingress"]))
    until(lambda: "served" not in fetch(kubectl, "client", web["web"]), "closed by a policy without rules")
    allowed = [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]
    kubectl.apply(policy("in", "web", policyTypes=["Ingress"], ingress=allowed))
    until(lambda: "served" in fetch(kubectl, "client", web["web"]), "opened for the client")
    kubectl("delete", "networkpolicy", "in")


def test_policies_hold_what_goes_out(kubectl: Kubectl, web: dict[str, str]) -> None:
    until(lambda: "served" in fetch(kubectl, "client", web["plain"]), "open before")
    to_web = [{"to": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]
    kubectl.apply(policy("out", "client", policyTypes=["Egress"], egress=to_web))
    until(lambda: "served" not in fetch(kubectl, "client", web["plain"]), "closed to all but one")
    assert "served" in fetch(kubectl, "client", web["web"])
    kubectl("delete", "networkpolicy", "out")


def test_a_pod_over_its_memory_is_oom_killed(kubectl: Kubectl) -> None:
    hungry = ("busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")
    kubectl.apply(pod("hungry", hungry, container={"resources": {"limits": {"memory": "32Mi"}}}))
    ended = kubectl.ended("hungry")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_pods_that_overrun_their_disk_are_evicted(kubectl: Kubectl) -> None:
    fill = "busybox dd if=/dev/zero of=/full/zeros bs=1M count=64; busybox sleep 3600"
    mount = {"volumeMounts": [{"name": "full", "mountPath": "/full"}]}
    volume = {"name": "full", "emptyDir": {"sizeLimit": "16Mi"}}
    limits = {"resources": {"limits": {"ephemeral-storage": "16Mi"}}}
    kubectl.apply(
        pod("full-volume", ("busybox", "sh", "-c", fill), container=mount, volumes=[volume]),
        pod("full-layer", ("busybox", "sh", "-c", f"busybox mkdir /full; {fill}"), container=limits),
    )
    for name, what in (("full-volume", "EmptyDir volume"), ("full-layer", "ephemeral local storage")):
        status = kubectl.ended(name)
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
        assert what in status["message"]


def test_processes_of_a_pod_are_bounded(kubectl: Kubectl) -> None:
    many = "for n in $(busybox seq 1200); do busybox sleep 600 & done"
    kubectl.apply(pod("many", ("busybox", "sh", "-c", many)))
    kubectl.ended("many")
    assert "fork" in kubectl("logs", "many")


def test_the_default_seccomp_profile_holds(kubectl: Kubectl) -> None:
    profile = {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    kubectl.apply(pod("filtered", ("busybox", "grep", "Seccomp:", "/proc/self/status"), container=profile))
    assert kubectl.ended("filtered")["phase"] == "Succeeded"
    assert kubectl("logs", "filtered").split() == ["Seccomp:", "2"]


def test_a_quota_refuses_the_pod_too_many(kubeconfig: str) -> None:
    with fresh_namespace(kubeconfig) as kubectl:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}}
        kubectl.apply({**quota, "spec": {"hard": {"pods": "1"}}})
        until(lambda: kubectl.get("resourcequota", "one").get("status", {}).get("hard"), "the quota counts")
        kubectl.apply(pod("first"))
        with pytest.raises(Refused, match="exceeded quota"):
            kubectl.apply(pod("second"))


def test_pod_security_refuses_a_privileged_pod(kubectl: Kubectl) -> None:
    with pytest.raises(Refused, match="violates PodSecurity"):
        kubectl.apply(pod("mighty", container={"securityContext": {"privileged": True}}))


def test_a_runtime_class_that_the_node_lacks_starts_nothing(kubectl: Kubectl) -> None:
    absent = f"absent-{kubectl.namespace}"
    kubectl.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": absent}, "handler": "x"}
    )
    try:
        kubectl.apply(pod("classed", runtimeClassName=absent))
        chosen = ("get", "events", "--field-selector", "involvedObject.name=classed")
        until(lambda: 'no runtime for "x"' in kubectl(*chosen), "the kubelet says that it has no such runtime")
        assert kubectl.get("pod", "classed")["status"]["phase"] == "Pending"
    finally:
        kubectl("delete", "runtimeclass", absent)


def test_the_api_server_counts_and_shares_requests(kubectl: Kubectl) -> None:
    metrics = kubectl("get", "--raw", "/metrics")
    assert "\napiserver_request_total{" in metrics
    assert "\napiserver_flowcontrol_dispatched_requests_total{" in metrics


def test_simulated_pods_run_on_fake_nodes(kubectl: Kubectl) -> None:
    subprocess.run([SCRIPT, "kwok", "1"], check=True, timeout=240)
    spec = pod("unused", nodeSelector={"type": "kwok"}, tolerations=[{"key": "kwok", "operator": "Exists"}])["spec"]
    labels = {"app": "simulated"}
    template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
    kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "simulated"},
            "spec": {"replicas": 50, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    until(lambda: kubectl.get("deployment", "simulated")["status"].get("readyReplicas") == 50, "50 simulated pods", 120)
    nodes = kubectl("get", "pods", "-l", "app=simulated", "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert all(node.startswith("kwok-") for node in nodes)
