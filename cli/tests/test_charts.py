"""Numbers to SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_cli.report import charts

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(finite, finite)
def test_ticks_cover_the_values(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = charts.nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    rounding = 1e-8 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + rounding
    assert ticks[-1] >= high - rounding


def test_a_line_has_a_point_per_value() -> None:
    svg = charts.line_chart("t", [charts.Series("s", [(1, 0.1), (2, 0.4), (5, 0.2)], 1)], charts.Axes())
    root = ElementTree.fromstring(svg)
    assert len(root.findall("circle")) == 3
    assert [c.find("title").text for c in root.findall("circle")] == ["s, 1: 0.1", "s, 2: 0.4", "s, 5: 0.2"]  # type: ignore[union-attr]


def test_no_data_is_no_chart() -> None:
    assert charts.line_chart("t", [charts.Series("s", [], 1)], charts.Axes()) == ""
    assert charts.stacked_bars("t", [], ["a"], charts.Axes()) == ""


def test_one_point_and_constant_values_are_drawn() -> None:
    for points in ([(1.0, 0.0)], [(1.0, 3.0), (2.0, 3.0)]):
        assert "<circle" in charts.line_chart("t", [charts.Series("s", list(points), 1)], charts.Axes())


def test_zeros_on_a_zero_based_axis_have_no_negative_ticks() -> None:
    svg = charts.line_chart("t", [charts.Series("s", [(1, 0.0), (2, 0.0)], 1)], charts.Axes(y_min=0.0))
    labels = [t.text for t in ElementTree.fromstring(svg).findall("text")]
    assert "0" in labels
    assert not any(label and label.startswith("-") for label in labels)


def test_stack_heights_add_up() -> None:
    bars = [charts.Bar("1", {"a": 3.0, "b": 1.0}), charts.Bar("2", {"a": 1.0})]
    root = ElementTree.fromstring(charts.stacked_bars("t", bars, ["a", "b"], charts.Axes()))
    heights = [float(r.get("height", "0")) for r in root.findall("rect")]
    assert len(heights) == 3
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.02)
    assert heights[0] == pytest.approx(3 * heights[2], rel=0.02)


def test_names_are_escaped() -> None:
    svg = charts.line_chart("<t>", [charts.Series("<s>", [(1, 1.0)], 1)], charts.Axes(x_label="<x>"))
    ElementTree.fromstring(svg)


@pytest.mark.parametrize(("low", "high", "css"), [(0.1, 0.5, "good"), (-0.5, -0.1, "bad"), (-0.1, 0.2, "flat")])
def test_the_intervals_colour_follows_its_side_of_zero(low: float, high: float, css: str) -> None:
    assert f'class="strip {css}"' in charts.interval_strip(low, high, (low + high) / 2)
