"""The demo's last words: the report in ten lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshore_cli.report.view import build_view, duration


def summary_rows(report: dict[str, Any], page: Path) -> list[tuple[str, str]]:
    """Label and text, in order."""
    view = build_view(report)
    run, verdict = view["run"], view["verdict"]
    rows = [("run", f"{run['name']} {run['id']}, seed {run['seed']}"), ("verdict", verdict["label"].lower())]
    for panel in view["panels"]:
        rows.append(
            (
                f"{panel['name']}, {panel['n']} tasks",
                f"{panel['base']['text']} -> {panel['final']['text']} solved, {panel['difference_text']} points "
                f"[{panel['interval_text']}]; {panel['wins']} wins, {panel['ties']} ties, {panel['losses']} losses; "
                f"{panel['test']} p = {panel['p_text']}",
            )
        )
    if verdict["rule"]:
        rows.append(("rule", verdict["rule"]))
    rows += [(f"{a['name'].lower()} attempts", _equation(a)) for a in view["accounts"]]
    if view["capture"] is not None:
        rows.append(("capture check", _capture(report["capture_check"])))
    rows.append(("wall time", duration(report.get("wall_s"))))
    rows.append(("report", str(page)))
    return rows


def _equation(account: dict[str, Any]) -> str:
    return (
        f"{account['planned']} planned + {account['refilled']} refilled = {account['scored']} scored + "
        f"{account['failed']} failed + {account['discarded']} discarded + {account['open']} open; "
        f"{account['retried']} retried"
    )


def _capture(check: dict[str, Any]) -> str:
    result = "ok" if check.get("ok") else "FAILED"
    largest = check.get("max_abs_diff")
    shown = f", largest difference {largest:.1e}" if isinstance(largest, float) else ""
    return f"{result}: {check.get('turns', '?')} turns, {check.get('tokens', '?')} tokens{shown}"
