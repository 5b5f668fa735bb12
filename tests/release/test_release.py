"""The main job on a real cluster: install, test, train, watch, upgrade, uninstall. Run by `make test-cluster-e2e`.

The tests share one release and run in this order; the first that fails ends the run (`-x`).
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from release import CPU_VALUES, REPOSITORY, Connected, Failed, Release, connected, run, until

pytestmark = [pytest.mark.cluster, pytest.mark.release]

SPEC = REPOSITORY / "examples/runs/cluster-grpo.yaml"
RUN_TIMEOUT_S = 2400


def conditions(pod: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}


def restarts(pod: dict[str, Any]) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


class Sightings(threading.Thread):
    """What the cluster showed while a run went on: task pods, trainer Jobs, names that the engine served."""

    def __init__(self, release: Release) -> None:
        super().__init__(daemon=True)
        self._release = release
        self._over = threading.Event()
        self.sandboxes: set[str] = set()
        self.most_at_once = 0
        self.jobs: dict[str, str] = {}
        self.served: set[str] = set()

    def run(self) -> None:
        while not self._over.wait(1.5):
            try:
                self._look()
            except (Failed, ValueError, KeyError):
                continue

    def _look(self) -> None:
        chosen = f"longshore.dev/release,longshore.dev/component=sandbox"
        pods = json.loads(run("kubectl", "get", "pods", "-A", "-l", chosen, "-o", "json"))["items"]
        live = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}
        self.sandboxes |= live
        self.most_at_once = max(self.most_at_once, len(live))
        for job in self._release.get("jobs", "-l", "app.kubernetes.io/component=trainer"):
            status = job.get("status", {})
            done = "succeeded" if status.get("succeeded") else "failed" if status.get("failed") else "running"
            self.jobs[job["metadata"]["name"]] = done
        for pod in self._release.get("pods", "-l", f"{self._release.selector},app.kubernetes.io/component=engine-default"):
            address = pod["status"].get("podIP")
            answer = run("curl", "-s", "--max-time", "2", f"http://{address}:8000/v1/models")
            self.served |= {model["id"] for model in json.loads(answer)["data"]}

    def end(self) -> None:
        """Stops looking."""
        self._over.set()
        self.join(30)


def test_all_pods_are_ready_and_none_restarted(release: Release) -> None:
    pods = release.pods()
    assert len(pods) >= 10
    for pod in pods:
        name = pod["metadata"]["name"]
        assert conditions(pod).get("Ready") == "True", name
        assert restarts(pod) == 0, name


def test_helm_test_is_green(release: Release) -> None:
    release.helm("test", release.name, "--logs")


def test_doctor_finds_the_release_sound(release: Release) -> None:
    report = json.loads(
        run("longshore", "doctor", "--cluster", "--namespace", release.namespace, "--release", release.name, "-o", "json")
    )
    assert report["ok"], report


@pytest.fixture(scope="module")
def prepared(cli: Connected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tasks, model and demonstrations of the spec, on the release."""
    run("longshore", "demo", "prepare", "--cluster", "--home", str(cli.home), timeout_s=900)
    loaded: dict[str, Any] = yaml.safe_load(SPEC.read_text())
    return loaded


def test_the_main_job_runs_on_the_cluster_and_the_reward_rises(
    release: Release, cli: Connected, prepared: dict[str, Any]
) -> None:
    seen = Sightings(release)
    seen.start()
    try:
        submitted = cli.json("run", "submit", str(SPEC), "--watch", "--timeout", str(RUN_TIMEOUT_S), timeout_s=2500)
    finally:
        seen.end()
    report = cli.json("report", submitted["run_id"])
    assert report["run"]["state"] == "succeeded"
    rewards = [step["reward_mean"] for step in report["steps"]]
    third = max(1, len(rewards) // 3)
    assert sum(rewards[-third:]) / third > sum(rewards[:third]) / third, rewards
    assert seen.sandboxes, "attempts ran in task pods"
    assert any(state == "succeeded" for state in seen.jobs.values()), seen.jobs
    assert any(name.endswith("-v1") for name in seen.served), seen.served
    attempts = report["attempts"]
    ended = attempts["scored"] + attempts["failed"] + attempts["discarded"]
    assert attempts["planned"] + attempts["refilled"] == ended
    assert report["panels"], "a paired evaluation"


def test_uninstall_leaves_nothing_but_volumes(release: Release) -> None:
    release.helm("uninstall", release.name, "--wait")
    left = until(lambda: [] == [x for x in release.everything() if not _kept(x)] or None, "nothing is left", 120)
    assert left


def _kept(line: str) -> bool:
    return line.startswith(("PersistentVolume", "Event"))
