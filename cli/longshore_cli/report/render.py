"""Writes report.json and report.html beside each other, each by an atomic rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from longshore_cli.report.view import build_view


def render_html(report: dict[str, Any]) -> str:
    """The self-contained page: CSS and SVG inline, no scripts, no outside resource."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("longshore_cli.report"),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(**build_view(report))


def write_report(report: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes both files into `folder` (made when missing); returns (report.json, report.html)."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "report.json", folder / "report.html"
    write_atomic(as_json, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_atomic(as_html, render_html(report))
    return as_json, as_html


def write_atomic(path: Path, text: str) -> None:
    """Readers see the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
