"""The command tree: quick help, exit codes, errors without traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

from longshore_cli import frame

Cli = Callable[..., Result]

HEAVY = (
    "torch",
    "vllm",
    "transformers",
    "deepspeed",
    "grpc",
    "sqlalchemy",
    "alembic",
    "pydantic",
    "jinja2",
    "numpy",
    "scipy",
)


def test_help_imports_nothing_heavy() -> None:
    """prime-rl's `--help` took 9 s before late imports. Modules are counted: a clock lies on a busy machine."""
    script = (
        "import sys\nsys.argv = ['longshore', '--help']\n"
        "from longshore_cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    assert "Exit codes: 0 ok, 1 negative finding, 2 usage or configuration, 3 timed out." in done.stdout


@pytest.mark.parametrize("noun", ["run", "task", "sandbox", "policy", "report"])
def test_every_noun_has_help(cli: Cli, noun: str) -> None:
    assert cli(noun, "--help").exit_code == 0


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("longshore 0.")


@pytest.mark.parametrize(
    "arguments", [["nope"], ["run", "get"], ["run", "list", "-o", "xml"], ["up", "--port-base", "-1"]]
)
def test_wrong_usage_is_exit_code_2(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_fault_of_ours_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("longshore_cli.doctor.checks.all_checks", broken)
    result = cli("doctor")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: internal fault, RuntimeError: boom; set {frame.DEBUG_VARIABLE}=1 to see where, and report it\n"
    )


def test_nothing_runs_and_nothing_is_stored(cli: Cli) -> None:
    result = cli("run", "list")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "longshore up" in result.stderr
