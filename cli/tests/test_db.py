"""`longshore db` on a real Postgres."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from longshore_cli.databases import WITH_DATABASE
from longshore_cli.main import app


@pytest.fixture
def _databases(postgres_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for service in WITH_DATABASE:
        variable = f"LONGSHORE_{service.upper().replace('-', '_')}_DATABASE"
        monkeypatch.setenv(f"{variable}_URL", postgres_server)
        monkeypatch.setenv(f"{variable}_SCHEMA", f"db_{service.replace('-', '_')}")


@pytest.mark.usefixtures("_databases")
def test_migrate_brings_all_up_to_date_and_status_says_so() -> None:
    assert CliRunner().invoke(app, ["db", "status"]).exit_code == 1
    first = CliRunner().invoke(app, ["db", "migrate", "-o", "json"])
    assert first.exit_code == 0, first.output
    assert {one["service"] for one in json.loads(first.stdout)} == set(WITH_DATABASE)
    assert all(one["revision"] == one["newest"] for one in json.loads(first.stdout))
    again = CliRunner().invoke(app, ["db", "migrate", "-o", "json"])
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert CliRunner().invoke(app, ["db", "status"]).exit_code == 0


@pytest.mark.usefixtures("_databases")
def test_only_the_chosen_service_is_touched() -> None:
    done = CliRunner().invoke(app, ["db", "status", "--service", "controller", "-o", "json"])
    assert [one["service"] for one in json.loads(done.stdout)] == ["controller"]


def test_an_unknown_service_and_a_bad_url_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = CliRunner().invoke(app, ["db", "status", "--service", "harbour"])
    assert unknown.exit_code == 2
    assert "services with one are" in unknown.output
    monkeypatch.setenv("LONGSHORE_CONTROLLER_DATABASE_URL", "a-secret-word")
    bad = CliRunner().invoke(app, ["db", "status", "--service", "controller"])
    assert bad.exit_code == 2
    assert "LONGSHORE_CONTROLLER_DATABASE_URL" in bad.output
    assert "a-secret-word" not in bad.output
