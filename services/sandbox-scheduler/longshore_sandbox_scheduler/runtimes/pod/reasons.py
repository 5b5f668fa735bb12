"""Why a pod did not start or has ended, from what the API server shows of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore_sandbox_scheduler.domain.model import EndReason
from longshore_sandbox_scheduler.domain.runtime import SandboxEnd

Pod = Mapping[str, Any]

MAIN = "main"
_PERMANENT_PULL = ("ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_PASSING_PULL = ("ErrImagePull", "ImagePullBackOff")
_PERMANENT_PULL_TEXTS = (
    "not found", "manifest unknown", "unauthorized", "denied", "no such host", "invalid reference", "not valid",
)  # fmt: skip
"""Not "failed to resolve reference": containerd says so of a registry that is away for a moment, too."""
_START_ERRORS = (
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    "ContainerCannotRun", "StartError", "PostStartHookError", "PreStartHookError",
)  # fmt: skip
_NODE_LOST = ("NodeLost", "NodeShutdown", "Terminated", "Shutdown", "DeletionByTaintManager", "DeletionByPodGC")
_NODE_LOST_CONDITIONS = ("DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")
_EVICTED_CONDITIONS = ("PreemptionByScheduler", "EvictionByEvictionAPI")


@dataclass(frozen=True)
class Graces:
    """How long what may pass by itself is waited for, seconds."""

    image_pull_s: float = 60.0
    unschedulable_s: float = 30.0


def seconds_of(stamp: str) -> float:
    """Seconds since the epoch of an RFC 3339 time."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def age_s(pod: Pod, now_s: float) -> float:
    """Seconds since the pod was created."""
    return now_s - seconds_of(pod["metadata"]["creationTimestamp"])


def container_id(pod: Pod) -> str:
    """Of the main container; empty before it runs."""
    return str(_main(pod).get("containerID", ""))


def image_digest(pod: Pod) -> str:
    """Of the image that the main container runs; empty before it is known."""
    return str(_main(pod).get("imageID", "")).rpartition("@")[2]


def is_running(pod: Pod) -> bool:
    """Whether the main container runs and the pod has an address."""
    return "running" in _main(pod).get("state", {}) and bool(pod["status"].get("podIP"))


def _main(pod: Pod) -> Mapping[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    found: Mapping[str, Any] = next((status for status in statuses if status["name"] == MAIN), {})
    return found


def _statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _conditions(pod: Pod) -> dict[str, Mapping[str, Any]]:
    return {one["type"]: one for one in pod.get("status", {}).get("conditions") or ()}


def end_of(pod: Pod, *, deleted: bool) -> SandboxEnd | None:
    """How a pod ended; None while it may still run. deleted: the API server has removed it."""
    status = pod.get("status", {})
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if reason == "Evicted":
        return SandboxEnd(EndReason.EVICTED, message)
    if reason == "DeadlineExceeded":
        return SandboxEnd(EndReason.DEADLINE_EXCEEDED, message or "activeDeadlineSeconds is over")
    terminated = _main(pod).get("state", {}).get("terminated")
    final = status.get("phase") in ("Failed", "Succeeded", "Unknown")
    # An evicted pod's containers are seen to end before the pod says why: its phase comes last.
    over = deleted or final or bool(terminated and "deletionTimestamp" in pod["metadata"])
    disrupted = _disrupted(pod, reason) if over else None
    if disrupted is not None:
        return disrupted
    if over and terminated and terminated.get("reason") == "OOMKilled":
        return _container_end(terminated)
    if over and (deleted or "deletionTimestamp" in pod["metadata"]):
        return SandboxEnd(EndReason.DELETED, "somebody else deleted its pod")
    if over and terminated:
        return _container_end(terminated)
    if status.get("phase") == "Failed":
        failed = _failed_before_main(pod)
        if failed:
            return SandboxEnd(EndReason.START_FAILED, failed)
        return SandboxEnd(EndReason.LOST, f"{reason}: {message}".strip(": ") or "its pod failed")
    return None


def _disrupted(pod: Pod, reason: str) -> SandboxEnd | None:
    """The cluster took it: its node, the scheduler for a pod of higher priority, or a drain."""
    if reason in _NODE_LOST:
        text = f"{reason}: {pod['status'].get('message', '')}".rstrip(": ")
        return SandboxEnd(EndReason.NODE_LOST, text)
    condition = _conditions(pod).get("DisruptionTarget", {})
    cause = condition.get("reason") if condition.get("status") == "True" else None
    text = f"{cause}: {condition.get('message', '')}".rstrip(": ")
    if cause in _NODE_LOST_CONDITIONS:
        return SandboxEnd(EndReason.NODE_LOST, text)
    if cause in _EVICTED_CONDITIONS:
        return SandboxEnd(EndReason.EVICTED, text)
    return None


def _failed_before_main(pod: Pod) -> str:
    """What an init container that failed says; empty: none did."""
    for status in _statuses(pod):
        failed = status.get("state", {}).get("terminated") or {}
        if failed.get("exitCode", 0) != 0 and status["name"] != MAIN:
            text = f"container {status['name']}: {failed.get('reason', '')} (status {failed['exitCode']})"
            return f"{text}: {failed['message']}" if failed.get("message") else text
    return ""


def _container_end(terminated: Mapping[str, Any]) -> SandboxEnd:
    reason, code = str(terminated.get("reason", "")), terminated.get("exitCode")
    if reason == "OOMKilled":
        return SandboxEnd(EndReason.OOM, "the kernel killed its init for memory")
    detail = f"its init ended: {reason or 'exit'} (status {code})"
    if terminated.get("message"):
        detail += f": {terminated['message']}"
    return SandboxEnd(EndReason.START_FAILED if reason in _START_ERRORS else EndReason.LOST, detail)


def start_problem(pod: Pod, now_s: float, graces: Graces) -> SandboxEnd | None:
    """Why a pod will not start; None while there is hope."""
    for status in _statuses(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        problem = _waiting_problem(waiting, age_s(pod, now_s), graces)
        if problem is not None:
            return SandboxEnd(problem.reason, f"container {status['name']}: {problem.detail}")
    if failed := _failed_before_main(pod):
        return SandboxEnd(EndReason.START_FAILED, failed)
    return _unschedulable(pod, now_s, graces)


def _waiting_problem(waiting: Mapping[str, Any], age: float, graces: Graces) -> SandboxEnd | None:
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    text = f"{reason}: {message}".rstrip(": ")
    if reason in _PERMANENT_PULL:
        return SandboxEnd(EndReason.IMAGE_PULL, text)
    if reason in _PASSING_PULL:
        permanent = any(word in message.lower() for word in _PERMANENT_PULL_TEXTS)
        if permanent or age > graces.image_pull_s:
            return SandboxEnd(EndReason.IMAGE_PULL, text)
    if reason in _START_ERRORS:
        return SandboxEnd(EndReason.START_FAILED, text)
    return None


def _unschedulable(pod: Pod, now_s: float, graces: Graces) -> SandboxEnd | None:
    scheduled = _conditions(pod).get("PodScheduled", {})
    refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    if refused and age_s(pod, now_s) > graces.unschedulable_s:
        return SandboxEnd(EndReason.UNSCHEDULABLE, str(scheduled.get("message", "")))
    return None
