"""A real Prometheus finds the pages of one release on the real cluster, labels them, and leaves others alone."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubectl import BUSYBOX, Kubectl, Refused, fresh_namespace
from scrape_release import scraping

pytestmark = pytest.mark.cluster

PAGE = 'longshore_controller_runs{state="training"} 1'


@pytest.fixture
def kubectl() -> Iterator[Kubectl]:
    config = os.environ.get("KUBECONFIG", "")
    if not Path(config).is_file() or shutil.which("prometheus") is None:
        pytest.skip("no test cluster, or no Prometheus: `make cluster-up`, tests/cluster/cluster prometheus")
    try:
        Kubectl(config)("get", "--raw", "/readyz")
    except Refused as error:
        pytest.skip(f"the test cluster does not answer: {error}")
    with fresh_namespace(config) as inside:
        yield inside


def pod(release: str, component: str, **ports: int) -> dict[str, Any]:
    """Serves PAGE on each port."""
    answer = f"printf 'HTTP/1.0 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\n{PAGE}\\n'"
    loops = (f"(while :; do {answer} | busybox nc -l -p {port}; done) &" for port in ports.values())
    command = f"{' '.join(loops)} wait"
    labels = {"instance": release, "component": component, "part-of": "longshore"}
    container = {
        "name": component,
        "image": BUSYBOX,
        "command": ["busybox", "sh", "-c", command],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{release}-{component}",
            "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()},
        },
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        },
    }


def ask(url: str, expr: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}", timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


def test_pods_of_the_release_are_scraped_and_named(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.apply(
        pod("mine", "controller", grpc=7408, metrics=9090),
        pod("mine", "engine-default", http=8000, metrics=9090),
        pod("other", "controller", metrics=9090),
    )
    for name in ("mine-controller", "mine-engine-default", "other-controller"):
        kubectl.running(name)
    with scraping(kubectl.namespace, "mine", tmp_path) as url:
        deadline = time.monotonic() + 90
        while len(found := ask(url, "up == 1")) < 3 and time.monotonic() < deadline:
            time.sleep(0.5)
        everything = ask(url, "up")
        runs = ask(url, "longshore_controller_runs")
    shown = sorted((one["metric"]["component"], one["metric"]["instance"].rpartition(":")[2]) for one in found)
    assert shown == [("controller", "9090"), ("engine-default", "8000"), ("engine-default", "9090")]
    assert len(everything) == 3
    labels = {key: {one["metric"][key] for one in runs} for key in ("namespace", "release", "pod", "job")}
    assert labels == {
        "namespace": {kubectl.namespace},
        "release": {"mine"},
        "pod": {"mine-controller", "mine-engine-default"},
        "job": {"mine-controller", "mine-engine-default"},
    }
