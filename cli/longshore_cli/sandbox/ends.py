"""Why a sandbox ended, in words, and what to do about it."""

from __future__ import annotations

from typing import Any

WORDS = {
    "deleted": ("it was deleted", "nothing, if that was meant; else claim a new one"),
    "expired": (
        "its lease ran out",
        "renew in time, or claim with a longer ttl; whoever held it may have crashed",
    ),
    "oom": (
        "it went over its memory limit",
        "raise memory_mb in the task's task.toml, or see which command needs so much",
    ),
    "image_pull": (
        "its image could not be pulled",
        "check the image's name and digest, the registry, and the cluster's pull secret",
    ),
    "evicted": (
        "it went over its storage limit, or its node ran short",
        "check storage_mb in task.toml against what the task writes, and the node's free disk and memory",
    ),
    "deadline_exceeded": (
        "it reached the longest life of a sandbox",
        "raise the scheduler's max_life_s, or let the attempt end sooner",
    ),
    "node_lost": ("its node was lost", "nothing: the attempt is tried again elsewhere; look at the node"),
    "quota": (
        "the namespace's quota was full",
        "raise the ResourceQuota of the sandbox namespace, or lower the scheduler's max_sandboxes",
    ),
    "unschedulable": (
        "no node could take it",
        "compare its limits with the nodes' free resources, selectors and taints",
    ),
    "start_failed": ("it did not start", "read the detail; the scheduler's log has the rest"),
    "lost": (
        "its process or pod vanished without a reason",
        "see whether its scheduler, launcher or pod was killed, then claim a new one",
    ),
}
"""End reason to what happened and what to do."""


def happened(sandbox: dict[str, Any]) -> str:
    """What ended it, with the detail; empty while it lives."""
    if sandbox["state"] != "ended":
        return ""
    words, _ = WORDS.get(sandbox["end_reason"], (sandbox["end_reason"] or "no reason was recorded", ""))
    return f"{words} ({sandbox['end_detail']})" if sandbox["end_detail"] else words


def what_to_do(sandbox: dict[str, Any]) -> str:
    """What to do about an end; empty while it lives."""
    return WORDS.get(sandbox["end_reason"], ("", ""))[1] if sandbox["state"] == "ended" else ""


def advice(sandbox: dict[str, Any]) -> str:
    """Both in one line."""
    todo = what_to_do(sandbox)
    return f"{happened(sandbox)}; {todo}" if todo else happened(sandbox)
