"""Sandboxes and pools as rows and fields for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from longshore_cli.output import age, short
from longshore_cli.sandbox.ends import happened, what_to_do

LIST_COLUMNS = (
    "sandbox", "state", "runtime", "network", "launch", "node", "attempt", "task", "image", "limits", "age",
)  # fmt: skip
POOL_COLUMNS = ("template", "image", "network", "limits", "ready", "starting", "target", "demand", "hits", "misses")
SWEEP_COLUMNS = ("kind", "name", "why")
RUN_COLUMNS = ("run", "sandboxes", "starting", "ready", "warm starts", "cold starts", "networks")

_UNITS = {
    "cpus": ("cpus", ""),
    "memory_mb": ("memory", " MiB"),
    "storage_mb": ("storage", " MiB"),
    "max_processes": ("processes", ""),
    "max_file_mb": ("file_size", " MiB"),
}
"""Field of Limits to its name in `enforcement`, and its unit."""
_UNKNOWN_RUN = "(no run)"


def network(name: str) -> str:
    """As task.toml and the docs spell it."""
    return name.replace("_", "-")


def list_row(one: dict[str, Any]) -> tuple[object, ...]:
    """A line of `list`."""
    enforced = (one["enforcement"] or {}).get("by_limit", {})
    return (
        one["sandbox_id"],
        f"{one['state']}{' (' + one['end_reason'] + ')' if one['end_reason'] else ''}",
        one["runtime"],
        network(one["network_class"]),
        one["launch_type"],
        one["node"],
        one["attempt_id"],
        short(one["task_digest"]),
        short(one["image_digest"]),
        ", ".join(f"{name}: {how}" for name, how in sorted(enforced.items())),
        age(one["created_at_ms"]),
    )


def described(one: dict[str, Any]) -> list[tuple[str, object]]:
    """All that is known of one sandbox; fields that say nothing are left out."""
    fields = [
        ("sandbox", one["sandbox_id"]),
        ("state", one["state"]),
        ("ended because", happened(one)),
        ("what to do", what_to_do(one)),
        ("runtime", one["runtime"]),
        ("node", one["node"]),
        ("instance", one["instance"]),
        ("network", network(one["network_class"])),
        ("launch", one["launch_type"]),
        ("run", one["run_id"]),
        ("attempt", one["attempt_id"]),
        ("task", one["task_digest"]),
        ("image", one["image_digest"]),
        ("created", _moment(one["created_at_ms"])),
        ("lease ends" if one["state"] != "ended" else "lease ended", _moment(one["expires_at_ms"])),
        ("ends at the latest", _moment(one["deadline_at_ms"])),
    ]
    return [(name, value) for name, value in fields if value] + _limit_fields(one)


def _limit_fields(one: dict[str, Any]) -> list[tuple[str, object]]:
    enforced = (one["enforcement"] or {}).get("by_limit", {})
    limits = one["limits"] or {}
    return [
        (f"limit {name}", f"{limits[field]:g}{unit}, {_binding(enforced.get(name))}")
        for field, (name, unit) in _UNITS.items()
        if limits.get(field)
    ]


def _binding(how: str | None) -> str:
    if how is None:
        return "not said what enforces it"
    return "watched only (advisory)" if how == "advisory" else f"enforced by {how}"


def _moment(at_ms: int) -> str:
    if not at_ms:
        return ""
    passed = time.time() - at_ms / 1000
    distance = f"{age(at_ms)} ago" if passed >= 0 else f"in {age(int(1000 * (2 * time.time() - at_ms / 1000)))}"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at_ms / 1000))} UTC ({distance})"


def pool_row(pool: dict[str, Any]) -> tuple[object, ...]:
    """A line of `pool`."""
    limits = pool["limits"] or {}
    short_limits = f"{limits.get('cpus', 0):g} cpu, {limits.get('memory_mb', 0)} MiB"
    counts = (pool[name] for name in ("ready", "starting", "target", "demand", "hits", "misses"))
    return (pool["template"], _image(pool["image"]), network(pool["network_class"]), short_limits, *counts)


def _image(name: str) -> str:
    """A reference without the long middle of its digest."""
    place, at, digest = name.rpartition("@")
    return f"{place}{at}{short(digest)}" if digest.startswith("sha256:") else name


def usage(
    sandboxes: Sequence[dict[str, Any]], pools: Sequence[dict[str, Any]], metrics: dict[str, float] | None
) -> dict[str, Any]:
    """What `top` shows, as one value."""
    return {
        "sandboxes": {
            "total": len(sandboxes),
            "by_state": _count(one["state"] for one in sandboxes),
            "by_network": _count(network(one["network_class"]) for one in sandboxes),
            "by_runtime": _count(one["runtime"] for one in sandboxes),
            "by_node": _count(one["node"] for one in sandboxes if one["node"]),
        },
        "runs": [_run(run, sandboxes) for run in sorted({one["run_id"] for one in sandboxes})],
        "pools": list(pools),
        "metrics": metrics,
    }


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _run(run: str, sandboxes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [one for one in sandboxes if one["run_id"] == run]
    return {
        "run": run,
        "sandboxes": len(own),
        "starting": sum(one["state"] == "starting" for one in own),
        "ready": sum(one["state"] == "ready" for one in own),
        "warm": sum(one["launch_type"] == "warm" for one in own),
        "cold": sum(one["launch_type"] == "cold" for one in own),
        "by_network": _count(network(one["network_class"]) for one in own),
    }


def run_row(run: dict[str, Any]) -> tuple[object, ...]:
    """A line of `top`."""
    counts = (run[name] for name in ("sandboxes", "starting", "ready", "warm", "cold"))
    return (run["run"] or _UNKNOWN_RUN, *counts, counted(run["by_network"]))


def counted(counts: dict[str, int]) -> str:
    """`a 3, b 1`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def summary(value: dict[str, Any]) -> list[tuple[str, object]]:
    """The head of `top`."""
    sandboxes, metrics = value["sandboxes"], value["metrics"]
    fields: list[tuple[str, object]] = [("sandboxes", f"{sandboxes['total']} ({counted(sandboxes['by_state'])})")]
    if not sandboxes["total"]:
        fields = [("sandboxes", "none")]
    for name in ("network", "runtime", "node"):
        if sandboxes[f"by_{name}"]:
            fields.append((f"by {name}", counted(sandboxes[f"by_{name}"])))
    if metrics is not None:
        fields += [(name, f"{count:g}") for name, count in metrics.items()]
    return fields
