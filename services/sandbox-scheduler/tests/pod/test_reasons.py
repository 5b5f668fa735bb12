"""Why pods end and do not start, by what the API server shows of them. Each row is a status as a cluster gives it."""

from __future__ import annotations

from typing import Any

import pytest

from longshore_sandbox_scheduler.domain.model import EndReason
from longshore_sandbox_scheduler.runtimes.pod.reasons import (
    Graces,
    age_s,
    container_id,
    end_of,
    image_digest,
    is_running,
    seconds_of,
    start_problem,
)

CREATED = "2026-12-01T00:00:00Z"
BORN = seconds_of(CREATED)


def pod(phase: str = "Running", *, deleting: bool = False, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a", "uid": "u", "creationTimestamp": CREATED}
    if deleting:
        metadata["deletionTimestamp"] = CREATED
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def main(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "state": state, "containerID": "containerd://1"}]


def init(name: str = "agent", **state: Any) -> list[dict[str, Any]]:
    return [{"name": name, "state": state}]


def ended(reason: str, code: int, message: str = "") -> list[dict[str, Any]]:
    return main(terminated={"reason": reason, "exitCode": code, "message": message})


def target(reason: str, message: str = "why") -> list[dict[str, Any]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


ENDS: list[tuple[str, dict[str, Any], bool, EndReason, str]] = [
    ("memory, paradigmxyz/centaur#1454", pod("Failed", containerStatuses=ended("OOMKilled", 137)), False,
     EndReason.OOM, "memory"),
    ("memory, seen only once it is gone", pod("Failed", containerStatuses=ended("OOMKilled", 137)), True,
     EndReason.OOM, "memory"),
    ("memory, as somebody deletes it", pod(deleting=True, containerStatuses=ended("OOMKilled", 137)), False,
     EndReason.OOM, "memory"),
    ("disk, decocms/studio#7011: a pod-level reason beside a container that looks killed",
     pod("Failed", reason="Evicted", message='Usage of EmptyDir volume "x" exceeds the limit "100Mi".',
         containerStatuses=ended("Error", 137), conditions=target("TerminationByKubelet")), False,
     EndReason.EVICTED, "100Mi"),
    ("deadline", pod("Failed", reason="DeadlineExceeded", message="Pod was active on the node longer than the "
                     "specified deadline"), False, EndReason.DEADLINE_EXCEEDED, "deadline"),
    ("the node is unreachable", pod(deleting=True, conditions=target("DeletionByTaintManager", "Taint manager: x")),
     True, EndReason.NODE_LOST, "Taint manager"),
    ("the node is gone", pod("Failed", conditions=target("DeletionByPodGC", "PodGC: node no longer exists")), False,
     EndReason.NODE_LOST, "node no longer exists"),
    ("the node shuts down", pod("Failed", reason="Terminated", message="Pod was terminated in response to imminent "
                                "node shutdown."), False, EndReason.NODE_LOST, "node shutdown"),
    ("an older cluster's word", pod("Unknown", reason="NodeLost"), True, EndReason.NODE_LOST, "NodeLost"),
    ("a more important pod", pod(deleting=True, containerStatuses=ended("Error", 137),
                                 conditions=target("PreemptionByScheduler", "preempting to accommodate")), False,
     EndReason.EVICTED, "accommodate"),
    ("a drain", pod(deleting=True, conditions=target("EvictionByEvictionAPI", "Eviction API: evicting")), True,
     EndReason.EVICTED, "Eviction API"),
    ("kubectl delete, seen at the end", pod(deleting=True, containerStatuses=ended("Completed", 0)), False,
     EndReason.DELETED, "somebody"),
    ("kubectl delete, seen by its absence", pod(containerStatuses=main(running={})), True, EndReason.DELETED,
     "somebody"),
    ("its agent was killed", pod("Failed", containerStatuses=ended("Error", 137)), False, EndReason.LOST, "137"),
    ("its agent ended", pod("Succeeded", containerStatuses=ended("Completed", 0)), False, EndReason.LOST, "status 0"),
    ("a command that does not exist", pod("Failed", containerStatuses=ended(
        "StartError", 128, 'exec: "/.longshore/agent/longshore-agent": no such file')), False,
     EndReason.START_FAILED, "no such file"),
    ("the agent could not be installed", pod("Failed", initContainerStatuses=init(
        terminated={"reason": "Error", "exitCode": 1, "message": "no space"})), False, EndReason.START_FAILED,
     "agent: Error (status 1): no space"),
    ("refused by the kubelet", pod("Failed", reason="UnexpectedAdmissionError", message="no cpu"), False,
     EndReason.LOST, "UnexpectedAdmissionError: no cpu"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "deleted", "reason", "word"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_an_end_has_its_reason(shown: dict[str, Any], deleted: bool, reason: EndReason, word: str) -> None:
    end = end_of(shown, deleted=deleted)
    assert end is not None
    assert end.reason is reason
    assert word in end.detail


@pytest.mark.parametrize(
    "shown",
    [
        pod("Pending"),
        pod(containerStatuses=main(running={})),
        pod(deleting=True, containerStatuses=main(running={})),
        # A node that is back before the pod was taken from it.
        pod(conditions=target("DeletionByTaintManager"), containerStatuses=main(running={})),
        pod("Pending", containerStatuses=main(waiting={"reason": "PodInitializing"})),
        # As an eviction begins; the pod's own reason comes with its last phase.
        pod(containerStatuses=ended("Completed", 0)),
    ],
)
def test_what_may_go_on_has_not_ended(shown: dict[str, Any]) -> None:
    assert end_of(shown, deleted=False) is None


def waiting(reason: str, message: str = "", container: str = "main") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    key = "containerStatuses" if container == "main" else "initContainerStatuses"
    return pod("Pending", **{key: [{"name": container, "state": state}]})


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod("Pending", conditions=[condition])


AWAY = 'failed to resolve reference "r.example/a:1": dial tcp 10.0.0.9:443: connect: connection refused'
GONE = 'failed to resolve reference "r.example/a:1": r.example/a:1: not found'

AT_ONCE: list[tuple[dict[str, Any], EndReason, str]] = [
    (waiting("InvalidImageName", 'couldn\'t parse image name "A:B:C"'), EndReason.IMAGE_PULL, "A:B:C"),
    (waiting("ErrImageNeverPull", "image is not present with pull policy of Never"), EndReason.IMAGE_PULL, "Never"),
    (waiting("ErrImagePull", GONE), EndReason.IMAGE_PULL, "not found"),
    (waiting("ImagePullBackOff", f"Back-off pulling image: {GONE}"), EndReason.IMAGE_PULL, "not found"),
    (waiting("ErrImagePull", "unauthorized: authentication required"), EndReason.IMAGE_PULL, "unauthorized"),
    (waiting("ErrImagePull", "manifest unknown"), EndReason.IMAGE_PULL, "manifest unknown"),
    (waiting("ErrImagePull", GONE, "agent"), EndReason.IMAGE_PULL, "container agent"),
    (waiting("CreateContainerConfigError", 'secret "x" not found'), EndReason.START_FAILED, "secret"),
    (waiting("RunContainerError", "no such file"), EndReason.START_FAILED, "no such file"),
    (waiting("CrashLoopBackOff", "back-off 10s restarting failed container=db", "db"), EndReason.START_FAILED, "db"),
]


@pytest.mark.parametrize(("shown", "reason", "word"), AT_ONCE)
def test_what_cannot_get_better_fails_at_once_actions_runner_controller_4654(
    shown: dict[str, Any], reason: EndReason, word: str
) -> None:
    problem = start_problem(shown, BORN, Graces())
    assert problem is not None
    assert problem.reason is reason
    assert word in problem.detail


@pytest.mark.parametrize(
    ("shown", "grace_s", "reason"),
    [
        (waiting("ErrImagePull", AWAY), 20.0, EndReason.IMAGE_PULL),
        (waiting("ImagePullBackOff", f"Back-off: {AWAY}"), 20.0, EndReason.IMAGE_PULL),
        (unscheduled("0/1 nodes are available: 1 Insufficient cpu."), 7.0, EndReason.UNSCHEDULABLE),
    ],
)
def test_what_may_pass_is_waited_for_and_then_told(shown: dict[str, Any], grace_s: float, reason: EndReason) -> None:
    graces = Graces(image_pull_s=20.0, unschedulable_s=7.0)
    assert start_problem(shown, BORN + grace_s, graces) is None
    problem = start_problem(shown, BORN + grace_s + 1, graces)
    assert problem is not None
    assert problem.reason is reason
    assert "connection refused" in problem.detail or "Insufficient cpu" in problem.detail


@pytest.mark.parametrize(
    "shown",
    [
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        pod("Pending"),
        pod("Pending", initContainerStatuses=init(terminated={"reason": "Completed", "exitCode": 0})),
        {"metadata": {"name": "a", "uid": "u", "creationTimestamp": CREATED}, "spec": {}},
    ],
)
def test_a_slow_start_is_no_problem(shown: dict[str, Any]) -> None:
    assert start_problem(shown, BORN + 10_000, Graces()) is None


def test_running_is_the_main_container_with_an_address() -> None:
    running = main(running={"startedAt": CREATED})
    assert is_running(pod(containerStatuses=running, podIP="10.0.0.1"))
    assert not is_running(pod(containerStatuses=running))
    assert not is_running(pod(containerStatuses=[{"name": "db", "state": {"running": {}}}], podIP="10.0.0.1"))
    assert not is_running(pod("Pending"))
    assert container_id(pod(containerStatuses=running)) == "containerd://1"
    assert container_id(pod("Pending")) == ""
    assert age_s(pod(), BORN + 3.5) == 3.5


def test_the_image_that_runs_is_named_by_its_digest() -> None:
    image = f"docker.io/library/debian@sha256:{'a' * 64}"
    shown = pod(containerStatuses=[{"name": "main", "state": {}, "imageID": image}])
    assert image_digest(shown) == f"sha256:{'a' * 64}"
    assert image_digest(pod("Pending")) == ""
