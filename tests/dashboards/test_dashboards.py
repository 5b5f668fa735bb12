"""Dashboards and alerts are as described and name only metrics that exist; the check cannot be fooled."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import check_dashboards
import make_metrics_table
import pytest
from dashboards.alerts import ALERTS
from dashboards.boards import DASHBOARDS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/longshore"
_NAME = re.compile(r"\blongshore_[a-z_]+")
_SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.mark.parametrize("tool", ["make_dashboards.py", "make_metrics_table.py"])
def test_generated_files_are_up_to_date(tool: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_metric_that_is_asked_for_exists() -> None:
    known = set(re.findall(r"`(longshore_[a-z_]+?)(?:_\{bucket,sum,count\})?`", make_metrics_table.page()))
    asked = {name for question in check_dashboards.questions({}) for name in _NAME.findall(question.expr)}
    plain = {next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name) for name in asked}
    assert {name for name in plain if name not in known} == set()
    assert len(asked) > 80


def test_every_panel_has_its_own_place_and_id() -> None:
    for path in (CHART / "dashboards").glob("*.json"):
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
        assert len(places) == len(panels)
        for panel in panels:
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert {path.stem for path in (CHART / "dashboards").glob("*.json")} == {board.uid for board in DASHBOARDS}


def test_every_expression_is_narrowed_to_the_chosen_release() -> None:
    for board in DASHBOARDS:
        for title, query in board.queries():
            selectors = re.findall(r"\{[^}]*\}", query.promql())
            assert selectors, title
            assert all("$namespace" in selector for selector in selectors), title


def test_every_alert_has_a_runbook_whose_commands_exist() -> None:
    from typer.main import get_command

    from longshore_cli.main import app

    pages = {path.stem: path.read_text() for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert set(pages) == {alert.name for alert in ALERTS}
    commands: Any = get_command(app)
    for name, text in pages.items():
        assert "**Look**" in text
        assert "**Do**" in text
        for words in re.findall(r"`longshore ([a-z]+)(?: ([a-z]+))?", text):
            group = commands.commands[words[0]]
            assert not words[1] or words[1] in group.commands, f"{name}: longshore {' '.join(words)}"
        for panel in re.findall(r"(?:Run overview|Trainer|Platform health|engines|sandboxes), \*([^*]+)\*", text):
            assert any(title == panel for board in DASHBOARDS for title, _ in board.queries()), f"{name}: {panel}"


Reply = Callable[[str], list[float] | str]


@pytest.fixture
def prometheus() -> Iterator[Callable[[Reply], str]]:
    """Starts a server that answers as Prometheus does; the reply to an expression: samples, or an error."""
    servers: list[ThreadingHTTPServer] = []

    def start(reply: Reply) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                given = reply(form["query"][0])
                refused = isinstance(given, str)
                values = [[index, str(value)] for index, value in enumerate(() if refused else given)]
                result = [{"metric": {}, "values": values}] if values else []
                body = {"status": "error", "error": given} if refused else {"data": {"result": result}}
                self.send_response(400 if refused else 200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def outcome(url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return check_dashboards.main(["--prometheus", url]), capsys.readouterr().out


def test_data_everywhere_is_fine(prometheus: Callable[[Reply], str], capsys: pytest.CaptureFixture[str]) -> None:
    code, table = outcome(prometheus(lambda expr: [math.nan, 1.0]), capsys)
    assert code == 0
    assert "FAIL" not in table
    assert "0 fine without, 0 not" in table


@pytest.mark.parametrize("nothing", [[], [math.nan, math.nan]], ids=["no series", "not a number"])
def test_an_empty_answer_needs_a_stated_reason(
    prometheus: Callable[[Reply], str], capsys: pytest.CaptureFixture[str], nothing: list[float]
) -> None:
    code, table = outcome(prometheus(lambda expr: nothing if "DCGM" in expr else [1.0]), capsys)
    assert (code, "empty: needs GPUs" in table) == (0, True)
    code, table = outcome(prometheus(lambda expr: nothing if "run_step{" in expr else [1.0]), capsys)
    assert code == 1
    assert re.search(r"FAIL Run overview: Progress +EMPTY", table)


def test_an_expression_that_is_refused_is_a_finding_even_with_a_reason(
    prometheus: Callable[[Reply], str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, table = outcome(prometheus(lambda expr: "parse error" if "DCGM" in expr else [1.0]), capsys)
    assert code == 1
    assert "REFUSED: parse error" in table


def test_no_prometheus_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_dashboards.main(["--prometheus", "http://127.0.0.1:9"]) == 2
    assert "does not answer" in capsys.readouterr().err
