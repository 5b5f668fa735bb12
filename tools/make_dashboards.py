"""Writes the chart's dashboards and alert rules from tools/dashboards; --check: says whether they are up to date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml
from dashboards.alerts import rules
from dashboards.boards import DASHBOARDS
from dashboards.grafana import to_json

CHART = Path(__file__).resolve().parents[1] / "deploy/helm/longshore"
_HEAD = "# Made by tools/make_dashboards.py from tools/dashboards/alerts.py.\n"


def wanted() -> dict[Path, str]:
    """Path -> content of every file."""
    files = {
        CHART / "dashboards" / f"{board.uid}.json": json.dumps(to_json(board), indent=1) + "\n" for board in DASHBOARDS
    }
    text = yaml.safe_dump(rules(), sort_keys=False, width=1000, allow_unicode=True)
    return files | {CHART / "alerts" / "longshore.yaml": _HEAD + text}


def differing(files: dict[Path, str]) -> list[Path]:
    """Files that are missing, old, or not made here."""
    there = {*(CHART / "dashboards").glob("*.json"), *(CHART / "alerts").glob("*.yaml")}
    old = [path for path, text in files.items() if path not in there or path.read_text() != text]
    return sorted([*old, *(there - files.keys())])


def main() -> int:
    """0: written, or up to date; 1: --check found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 when a file is not up to date"
    )
    options = parser.parse_args()
    files = wanted()
    changed = differing(files)
    if options.check:
        for path in changed:
            print(f"{path.relative_to(CHART)} is not up to date: run tools/make_dashboards.py", file=sys.stderr)
        return 1 if changed else 0
    for path in changed:
        if path not in files:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    print(f"{len(files)} files, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
