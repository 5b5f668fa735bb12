"""The report page: what it says, what it leaves out, that it stands alone."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_cli.report.figures import step_seconds
from longshore_cli.report.render import render_html
from longshore_cli.report.view import build_view, duration, p_text, paired_interval
from longshore_controller.domain.report import Report

SAMPLE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "report.json").read_text())


def test_the_sample_is_what_the_controller_writes(report: dict[str, Any]) -> None:
    """Fails when the controller's model gains or loses a key, so that the page is looked at again."""
    del report["capture_check"]
    Report.model_validate(report)


def test_the_page_says_verdict_numbers_and_rule(report: dict[str, Any]) -> None:
    page = render_html(report)
    panel = report["panels"][0]
    assert "Improved" in page
    assert report["decision"]["rule"].replace("<", "&lt;") in page
    assert f"{panel['wins']} wins, {panel['ties']} ties, {panel['losses']} losses" in page
    assert "exact McNemar p = 1.0e-11" in page
    assert "What this does not show" in page


def test_the_page_stands_alone(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert "<script" not in page
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", page)


def test_what_a_user_wrote_is_escaped(report: dict[str, Any]) -> None:
    report["run"]["name"] = "<img onerror=x>"
    report["capture_check"]["problems"] = ["<b>turn</b>"]
    page = render_html(report)
    assert "<img onerror" not in page
    assert "<b>turn" not in page


def _keys(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    if isinstance(value, dict):
        for key, child in value.items():
            found += [(*path, key), *_keys(child, (*path, key))]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        found += _keys(value[0], (*path, 0))
    return found


def test_a_report_without_any_one_key_still_renders() -> None:
    for path in _keys(SAMPLE):
        report = copy.deepcopy(SAMPLE)
        where: Any = report
        for key in path[:-1]:
            where = where[key]
        where.pop(path[-1])
        assert "What this does not show" in render_html(report), path


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(_keys(SAMPLE)), min_size=1, max_size=12, unique=True))
def test_a_report_with_holes_still_renders(holes: list[tuple[Any, ...]]) -> None:
    report = copy.deepcopy(SAMPLE)
    for path in holes:
        where: Any = report
        for key in path[:-1]:
            where = where.get(key) if isinstance(where, dict) else where[key]
            if where is None:
                break
        if isinstance(where, dict):
            where.pop(path[-1], None)
    assert "What this does not show" in render_html(report)


def test_a_run_that_goes_on_has_no_verdict() -> None:
    page = render_html({"run": {"run_id": "r", "name": "n", "state": "training"}, "verdict": None, "panels": []})
    assert "No verdict yet" in page
    assert "No paired evaluation has ended" in page


def test_a_missing_metric_is_a_gap_not_zero(report: dict[str, Any]) -> None:
    for step in report["steps"]:
        step["entropy"] = None
    titles = [f["title"] for f in build_view(report)["figures"]]
    assert "Entropy of sampled tokens" not in titles
    assert "KL to the starting policy" in titles


def test_accounts_that_do_not_balance_are_said(report: dict[str, Any]) -> None:
    assert "does not balance" not in render_html(report)
    report["attempts"]["scored"] -= 1
    assert "does not balance" in render_html(report)


def test_a_failed_capture_check_is_said(report: dict[str, Any]) -> None:
    report["capture_check"] |= {"ok": False, "problems": ["turn 1 of a-1 does not extend turn 0"]}
    page = render_html(report)
    assert "✗ no." in page
    assert "turn 1 of a-1 does not extend turn 0" in page


def test_several_samples_use_the_sign_test(report: dict[str, Any]) -> None:
    report["panels"][0] |= {"samples": 4, "test": "sign_test", "mcnemar_p": None, "p_value": 0.02}
    assert "sign test p = 0.020" in render_html(report)


def test_step_seconds_do_not_count_verification_twice() -> None:
    step = {"seconds": {"rollout": 5.0, "verify": 9.0, "wait_for_batch": 5.5, "train": 1.0, "publish": 0.2}}
    assert step_seconds(step) == {"rollout": 5.5, "train": 1.0, "checkpoint": 0.0, "publish": 0.2, "other": 0.0}


@pytest.mark.parametrize(("p", "text"), [(None, "–"), (0.5, "0.50"), (0.0123, "0.012"), (4.2e-9, "4.2e-09")])
def test_p_text(p: float | None, text: str) -> None:
    assert p_text(p) == text


@pytest.mark.parametrize(("s", "text"), [(None, "–"), (12.4, "12 s"), (412.3, "6 min 52 s"), (7265, "2 h 01 min")])
def test_duration(s: float | None, text: str) -> None:
    assert duration(s) == text


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_paired_interval_holds_the_difference(wins: int, losses: int, ties: int) -> None:
    n = wins + losses + ties
    if n == 0:
        return
    low, high = paired_interval(wins, losses, n)
    assert -1 <= low <= (wins - losses) / n <= high <= 1
