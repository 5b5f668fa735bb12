"""`longshore connect` on the real cluster, to a stand-in for a release: web servers on the ports of its services."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore_cli.local.home import Home

pytestmark = pytest.mark.cluster

IMAGE = "localhost/longshore/busybox:dev"
PORTS = {"controller": {"grpc": 7408, "rest": 7400}, "sandbox-scheduler": {"grpc": 7402}}
SERVED = (7408, 7400, 7402, 7410)


def kubectl(*arguments: str, given: str = "") -> str:
    done = subprocess.run(["kubectl", *arguments], input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(release: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "kind": "Secret",
            "metadata": {"name": "shared"},
            "stringData": {"key": "from the cluster"},
            "apiVersion": "v1",
        }
    ]
    for component, ports in PORTS.items():
        labels = {
            "app.kubernetes.io/name": "longshore",
            "app.kubernetes.io/instance": release,
            "app.kubernetes.io/component": component,
        }
        metadata = {"name": f"{release}-longshore-{component}", "labels": labels}
        declared = [{"name": name, "port": port} for name, port in ports.items()]
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {"selector": labels, "ports": declared},
            }
        )
        script = "echo $HOSTNAME > /www/index.html; " + "".join(f"busybox httpd -p {port} -h /www; " for port in SERVED)
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["busybox", "sh", "-c", f"{script} exec busybox sleep 3600"],
            "readinessProbe": {"httpGet": {"port": 7410}, "periodSeconds": 1},
            "env": [{"name": "LONGSHORE_SECRET", "valueFrom": {"secretKeyRef": {"name": "shared", "key": "key"}}}],
            "volumeMounts": [{"name": "www", "mountPath": "/www"}],
        }
        pod = {
            "metadata": {"labels": labels},
            "spec": {
                "containers": [container],
                "volumes": [{"name": "www", "emptyDir": {}}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        found.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    return found


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    if not os.environ.get("KUBECONFIG") or shutil.which("kubectl") is None:
        pytest.skip("no test cluster: make cluster-up, then make test-cluster")
    name = f"connect-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    try:
        kubectl(
            "apply",
            "-n",
            name,
            "-f",
            "-",
            given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects("rel")}),
        )
        kubectl("wait", "-n", name, "--for=condition=Available", "--timeout=100s", "deployment", "--all")
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def page(address: str) -> str:
    """What is served there; empty while it cannot be reached."""
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=2) as answer:
            return str(answer.read().decode().strip())
    except OSError:
        return ""


def until(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within 60 s: {what}"
        time.sleep(0.2)
    return found


def test_all_ports_are_reached_and_again_after_the_pod_is_replaced(namespace: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    command = [sys.executable, "-m", "longshore_cli", "connect", "-n", namespace, "--release", "rel"]
    process = subprocess.Popen([*command, "--home", str(home.path)], stderr=subprocess.PIPE, text=True)
    try:
        found = until(home.endpoints, "endpoints")
        assert home.secret() == "from the cluster"
        scheduler = found.grpc["sandbox-scheduler"]
        assert page(scheduler) == page(found.agents) != ""
        controller = page(found.grpc["controller"])
        assert controller.startswith("rel-longshore-controller-")
        assert page(found.http["controller"]) == controller
        kubectl("delete", "pod", "-n", namespace, controller)
        until(lambda: page(found.http["controller"]) not in ("", controller), "the next pod")
        assert home.endpoints() == found
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0
