"""The main job on a real cluster: install, test, train, watch, upgrade, uninstall. Run by `make test-cluster-e2e`.

The tests share one release and run in this order; the first that fails ends the run (`-x`).
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from release import LONGSHORE, REPOSITORY, Connected, Failed, Release, connected, run, until
from sandboxes import Door, answers_inside, claimed, doors_of

from longshore_inference_gateway.clients.vllm import api_key_of

pytestmark = [pytest.mark.cluster, pytest.mark.release, pytest.mark.timeout(3000)]

SPEC = REPOSITORY / "examples/runs/cluster-grpo.yaml"
RUN_TIMEOUT_S = 2400
METADATA = Door("cloud metadata", "169.254.169.254", 80)


def conditions(pod: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}


def report_of(cli: Connected, run_id: str) -> dict[str, Any]:
    folder = cli.home / run_id
    cli("report", "build", run_id, "--out", str(folder))
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def assert_counts_add_up(report: dict[str, Any]) -> None:
    attempts = report["attempts"]
    ended = attempts["scored"] + attempts["failed"] + attempts["discarded"]
    assert attempts["planned"] + attempts["refilled"] == ended


def kept(line: str) -> bool:
    """What an uninstall may leave."""
    return line.startswith(("PersistentVolume", "Event"))


def restarts(pod: dict[str, Any]) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


class Sightings(threading.Thread):
    """What the cluster showed while a run went on: task pods, trainer Jobs, names that the engine served."""

    def __init__(self, release: Release) -> None:
        super().__init__(daemon=True)
        self._release = release
        self._engine_key = f"Authorization: Bearer {api_key_of(release.secret())}"
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
        chosen = f"longshore.dev/release={self._release.fullname},longshore.dev/component=sandbox"
        pods = json.loads(run("kubectl", "get", "pods", "-A", "-l", chosen, "-o", "json"))["items"]
        live = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}
        self.sandboxes |= live
        self.most_at_once = max(self.most_at_once, len(live))
        for job in self._release.get("jobs", "-l", "app.kubernetes.io/component=trainer"):
            status = job.get("status", {})
            done = "succeeded" if status.get("succeeded") else "failed" if status.get("failed") else "running"
            self.jobs[job["metadata"]["name"]] = done
        for pod in self._release.get(
            "pods", "-l", f"{self._release.selector},app.kubernetes.io/component=engine-default"
        ):
            address = pod["status"].get("podIP")
            answer = run("curl", "-s", "--max-time", "2", "-H", self._engine_key, f"http://{address}:8000/v1/models")
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
        run(LONGSHORE, "doctor", "--cluster", "--namespace", release.namespace, "--release", release.name, "-o", "json")
    )
    assert report["ok"], report


@pytest.fixture(scope="module")
def prepared(cli: Connected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tasks, model and demonstrations of the spec, on the release."""
    run(LONGSHORE, "demo", "prepare", "--cluster", "--home", str(cli.home), timeout_s=900)
    loaded: dict[str, Any] = yaml.safe_load(SPEC.read_text())
    return loaded


def test_a_sandbox_reaches_the_gateway_and_nothing_else(
    release: Release, cli: Connected, prepared: dict[str, Any]
) -> None:
    with claimed(cli, 2) as (mine, neighbour):
        doors = doors_of(release, neighbour)
        shut = {door.name for door in doors["closed"]}
        unproven = {door.name for door in doors["closed"] if not door.opens_from_here()}
        assert not unproven, f"closed even for the node, so a sandbox proves nothing there: {unproven}"
        found = answers_inside(cli, mine, [*doors["open"], *doors["closed"], METADATA])
    assert {name for name, opens in found.items() if opens} == {door.name for door in doors["open"]}
    assert shut | {METADATA.name} == {name for name, opens in found.items() if not opens}


def test_a_second_release_beside_it_is_apart(release: Release, cli: Connected, prepared: dict[str, Any]) -> None:
    before = {pod["metadata"]["uid"] for pod in release.pods()}
    second = Release("other", "longshore-other")
    try:
        second.install("--set", "engines.pools.default.replicas=0")
        assert not set(release.everything()) & set(second.everything())
        with claimed(cli) as mine:
            second.helm("uninstall", second.name, "--wait")
            until(lambda: not [line for line in second.everything() if not kept(line)], "the second release is gone")
            assert cli("sandbox", "exec", mine[0], "--", "echo", "alive").strip() == "alive"
    finally:
        second.remove()
    assert {pod["metadata"]["uid"] for pod in release.pods()} == before


def test_the_main_job_runs_on_the_cluster_and_the_reward_rises(
    release: Release, cli: Connected, prepared: dict[str, Any]
) -> None:
    seen = Sightings(release)
    seen.start()
    try:
        submitted = cli.json("run", "submit", str(SPEC))["run_id"]
        cli("run", "watch", submitted, "--timeout", str(RUN_TIMEOUT_S), timeout_s=RUN_TIMEOUT_S + 60)
    finally:
        seen.end()
    report = report_of(cli, submitted)
    assert report["run"]["state"] == "succeeded"
    rewards = [step["reward_mean"] for step in report["steps"]]
    third = max(1, len(rewards) // 3)
    assert sum(rewards[-third:]) / third > sum(rewards[:third]) / third, rewards
    assert seen.sandboxes, "attempts ran in task pods"
    assert any(state == "succeeded" for state in seen.jobs.values()), seen.jobs
    assert any(name.endswith("-v1") for name in seen.served), seen.served
    assert_counts_add_up(report)
    assert report["panels"], "a paired evaluation"


def test_an_upgrade_with_a_running_run_loses_nothing(release: Release, cli: Connected, tmp_path: Path) -> None:
    spec = yaml.safe_load(SPEC.read_text())
    spec["name"] = "upgraded"
    spec["algorithm"]["steps"] = 3
    spec["rollout"]["groups_per_step"] = 4
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(spec))
    submitted = cli.json("run", "submit", str(path))["run_id"]
    until(lambda: int(cli.json("run", "get", submitted)["step"]) >= 1, "a first step", 900)
    before = {pod["metadata"]["uid"] for pod in release.pods()}
    release.upgrade("--set", "podAnnotations.test/upgrade=yes")
    with connected(release, tmp_path / "home") as again:
        assert not before & {pod["metadata"]["uid"] for pod in release.get("pods", "-l", release.service_selector)}
        again("run", "watch", submitted, timeout_s=1800)
        report = report_of(again, submitted)
    assert report["run"]["state"] == "succeeded"
    assert [step["step"] for step in report["steps"]] == [1, 2, 3]
    assert_counts_add_up(report)


def test_uninstall_leaves_nothing_but_volumes(release: Release) -> None:
    release.helm("uninstall", release.name, "--wait")
    until(lambda: not [line for line in release.everything() if not kept(line)], "nothing is left but volumes", 120)
    assert [line for line in release.everything() if kept(line)], "data outlives the release"
