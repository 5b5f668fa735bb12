"""Checks a run's report.json: the keys that others rely on, the counting rule, and the token-exactness proof."""

import json
import sys
from pathlib import Path

REQUIRED = {
    "": ["run", "verdict", "wall_s", "panels", "attempts", "policy", "steps", "tasks"],
    "attempts": ["planned", "refilled", "scored", "failed", "discarded", "retried", "by_termination", "by_failure"],
    "policy": ["versions", "base_digest"],
    "tasks": ["train", "test", "digests"],
}
PANEL = ["name", "n", "base", "final", "wins", "ties", "losses", "mcnemar_p", "tokens_ratio", "time_ratio"]
STEP = [
    *["step", "reward_mean", "solve_rate", "loss", "entropy", "kl", "mismatch_kl", "clip_fraction", "tokens"],
    *["zero_variance_groups", "seconds"],
]
SECONDS = ["rollout", "verify", "train", "publish"]


def missing(where: str, value: dict[str, object], keys: list[str]) -> list[str]:
    return [f"{where or 'report'}: key {key!r} is missing" for key in keys if key not in value]


def problems(report: dict) -> list[str]:
    found = [
        text for where, keys in REQUIRED.items() for text in missing(where, report[where] if where else report, keys)
    ]
    if found:
        return found
    for index, panel in enumerate(report["panels"]):
        found += missing(f"panels[{index}]", panel, PANEL)
        if panel["wins"] + panel["ties"] + panel["losses"] != panel["n"]:
            found.append(f"panels[{index}]: wins + ties + losses is not n")
    for index, step in enumerate(report["steps"]):
        found += missing(f"steps[{index}]", step, STEP) + missing(f"steps[{index}].seconds", step["seconds"], SECONDS)
    attempts = report["attempts"]
    ended = attempts["scored"] + attempts["failed"] + attempts["discarded"] + attempts.get("open", 0)
    if attempts["planned"] + attempts["refilled"] != ended:
        found.append(f"attempts: planned + refilled is not scored + failed + discarded + open: {attempts}")
    capture = report.get("capture_check")
    if not capture or not capture.get("ok") or not capture.get("turns"):
        found.append(f"capture_check: sampled turns do not equal a fresh forward pass: {capture}")
    if not report["panels"] or not report["steps"]:
        found.append("report: no panel or no step")
    return found


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text())
    found = problems(report)
    print("\n".join(found) or f"report: ok ({report['verdict']})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
