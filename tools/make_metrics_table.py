"""Writes docs/metrics.md from the metrics that the code registers; --check: says whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, Histogram

PAGE = Path(__file__).resolve().parents[1] / "docs/metrics.md"
MODULES = {
    "every gRPC server": ("longshore_common.grpc_server",),
    "who runs commands in sandboxes": ("longshore_common.agent_client",),
    "controller": ("longshore_controller.metrics",),
    "trainer": ("longshore_trainer.clients.showing",),
    "task-catalog": ("longshore_task_catalog.api.metrics",),
    "sandbox-scheduler": (
        "longshore_sandbox_scheduler.domain.metrics",
        "longshore_sandbox_scheduler.runtimes.pod.kube_api",
        "longshore_sandbox_scheduler.runtimes.docker.engine_api",
    ),
    "inference-gateway": ("longshore_inference_gateway.metrics",),
    "engine host": ("longshore_inference_gateway.engine_host.metrics",),
    "reward-verifier": ("longshore_reward_verifier.api.metrics",),
    "trajectory-store": ("longshore_trajectory_store.api.metrics", "longshore_trajectory_store.store.metrics"),
    "rollout-worker": ("longshore_rollout_worker.api.metrics",),
}
"""Who serves them -> where they are registered."""

_HEAD = """# Metrics

Made by `tools/make_metrics_table.py` from the code. Labels have few values: run ids, never attempt or sandbox ids.
Each process also serves `process_*` and `python_*`; vLLM serves its own `vllm:*` on its HTTP port.
"""


def registered() -> list[Any]:
    """Our collectors, in the order of their names."""
    found = {collector for collector in REGISTRY._collector_to_names if hasattr(collector, "_name")}
    ours = [collector for collector in found if collector._name.startswith("longshore_")]
    return sorted(ours, key=lambda collector: str(collector._name))


def row(collector: Any) -> str:
    """One line of the table."""
    name = collector._name + ("_total" if collector._type == "counter" else "")
    name += "_{bucket,sum,count}" if isinstance(collector, Histogram) else ""
    labels = ", ".join(collector._labelnames)
    return f"| `{name}` | {collector._type} | {labels} | {collector._documentation} |"


def page() -> str:
    """The whole file."""
    parts, known = [_HEAD], set()
    for who, modules in MODULES.items():
        for module in modules:
            import_module(module)
        new = [collector for collector in registered() if collector not in known]
        known.update(new)
        lines = ["| name | type | labels | what |", "|-|-|-|-|", *map(row, new)]
        parts.append(f"## {who}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    """0: written, or up to date; 1: --check found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when the file is old")
    text = page()
    if parser.parse_args().check:
        same = PAGE.is_file() and PAGE.read_text() == text
        if not same:
            print("docs/metrics.md is not up to date: run tools/make_metrics_table.py", file=sys.stderr)
        return 0 if same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
