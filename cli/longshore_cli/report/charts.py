"""Inline SVG charts for the report page: no scripts, colours by CSS variables so that light and dark both work.

Called by `view`. Pure functions from numbers to SVG text; missing values leave gaps, they are never drawn as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 560
HEIGHT = 230
LEFT, RIGHT, TOP, BOTTOM = 52, 58, 14, 34

Format = Callable[[float], str]


def percent(value: float) -> str:
    return f"{value * 100:.0f}%"


def percent_fine(value: float) -> str:
    return f"{value * 100:.1f}%"


def number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}".replace(".0e", "e")
    return f"{value:.3g}"


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 or value == 0 else f"{value:.1f} s"


@dataclass(frozen=True)
class Series:
    """One line: (x, y) pairs in order of x. `slot` picks the colour variable --c1..--c6."""

    name: str
    points: list[tuple[float, float]]
    slot: int


@dataclass(frozen=True)
class Axes:
    """What the axes show. Bounds that are None follow the data."""

    x_label: str = "step"
    y_format: Format = number
    y_min: float | None = None
    y_max: float | None = None


@dataclass(frozen=True)
class Bar:
    """One stacked bar: a label below it, and one value per part name."""

    label: str
    parts: dict[str, float] = field(default_factory=dict)


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round tick values that cover [low, high]; at least two."""
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
        half = 0.5 * abs(low) if abs(low) > 1e-290 else 0.5
        low, high = low - half, high + half
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)


def _svg(body: list[str], title: str, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, css: str = "tick", anchor: str = "middle") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _grid(ticks: Sequence[float], scale: _Scale, y_format: Format) -> list[str]:
    body = []
    for tick in ticks:
        y = scale(tick)
        css = "axis" if tick == ticks[0] else "grid"
        body.append(f'<line class="{css}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(LEFT - 8, y + 4, y_format(tick), anchor="end"))
    return body


def _x_ticks(xs: list[float], scale: _Scale, label: str) -> list[str]:
    every = max(1, math.ceil(len(xs) / 10))
    shown = [x for i, x in enumerate(xs) if i % every == 0 or (i == len(xs) - 1 and i % every > every / 2)]
    body = [_text(scale(x), HEIGHT - BOTTOM + 16, f"{x:g}") for x in shown]
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, label, "label"))
    return body


def _line(series: Series, x: _Scale, y: _Scale, y_format: Format) -> list[str]:
    path = " ".join(f"{'M' if i == 0 else 'L'}{x(px):.1f},{y(py):.1f}" for i, (px, py) in enumerate(series.points))
    colour = f"var(--c{series.slot})"
    body = [f'<path class="line" d="{path}" style="stroke:{colour}"/>']
    for px, py in series.points:
        tip = escape(f"{series.name}, {px:g}: {y_format(py)}")
        body.append(
            f'<circle class="dot" cx="{x(px):.1f}" cy="{y(py):.1f}" r="3.2" style="fill:{colour}">'
            f"<title>{tip}</title></circle>"
        )
    return body


def _end_labels(series: Sequence[Series], x: _Scale, y: _Scale, y_format: Format) -> list[str]:
    """Last values beside the line ends, moved apart where they would overlap."""
    ends = sorted(((y(s.points[-1][1]), s) for s in series if s.points), key=lambda e: e[0])
    body, previous = [], -math.inf
    for at, one in ends:
        at = max(at, previous + 13)
        previous = at
        last_x, last_y = one.points[-1]
        body.append(_text(x(last_x) + 8, at + 4, y_format(last_y), "value", "start"))
    return body


def line_chart(title: str, series: Sequence[Series], axes: Axes) -> str:
    """A line chart; empty text when no series has a point."""
    drawn = [s for s in series if s.points]
    if not drawn:
        return ""
    values = [py for s in drawn for _, py in s.points]
    low = axes.y_min if axes.y_min is not None else min(values)
    high = axes.y_max if axes.y_max is not None else max(values)
    if axes.y_min is not None and high <= low:
        high = low + 1.0
    ticks = nice_ticks(low, high)
    xs = sorted({px for s in drawn for px, _ in s.points})
    x = _Scale(xs[0], xs[-1], LEFT + 6, WIDTH - RIGHT - 4)
    y = _Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    body = _grid(ticks, y, axes.y_format) + _x_ticks(xs, x, axes.x_label)
    for one in drawn:
        body += _line(one, x, y, axes.y_format)
    body += _end_labels(drawn, x, y, axes.y_format)
    return _svg(body, title)


def stacked_bars(title: str, bars: Sequence[Bar], parts: Sequence[str], axes: Axes) -> str:
    """Stacked bars, parts from the bottom in the order given; part i has colour slot i + 1."""
    totals = [sum(bar.parts.values()) for bar in bars]
    if not bars or max(totals) <= 0:
        return ""
    ticks = nice_ticks(0.0, max(totals))
    y = _Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - RIGHT - LEFT) / len(bars)
    width = min(26.0, slot * 0.66)
    body = _grid(ticks, y, axes.y_format)
    every = max(1, math.ceil(len(bars) / 12))
    for i, bar in enumerate(bars):
        centre = LEFT + slot * (i + 0.5)
        body += _stack(bar, parts, centre - width / 2, width, y, axes.y_format)
        if i % every == 0:
            body.append(_text(centre, HEIGHT - BOTTOM + 16, bar.label))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, axes.x_label, "label"))
    return _svg(body, title)


def _stack(bar: Bar, parts: Sequence[str], left: float, width: float, y: _Scale, y_format: Format) -> list[str]:
    body, base = [], 0.0
    for slot, part in enumerate(parts, start=1):
        value = bar.parts.get(part, 0.0)
        if value <= 0:
            continue
        top, bottom = y(base + value), y(base)
        tip = escape(f"step {bar.label}, {part}: {y_format(value)}")
        body.append(
            f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{max(bottom - top, 0.6):.1f}" style="fill:var(--c{slot})"><title>{tip}</title></rect>'
        )
        base += value
    return body


def interval_strip(low: float, high: float, estimate: float) -> str:
    """A difference in percentage points with its interval, on a fixed axis from -1 to 1, zero marked."""
    width, height = 132, 26
    x = _Scale(-1.0, 1.0, 6, width - 6)
    tip = escape(f"difference {estimate * 100:+.1f} points, interval {low * 100:+.1f} to {high * 100:+.1f}")
    css = "good" if low > 0 else "bad" if high < 0 else "flat"
    return (
        f'<svg class="strip {css}" viewBox="0 0 {width} {height}" role="img" aria-label="{tip}"><title>{tip}</title>'
        f'<line class="grid" x1="6" x2="{width - 6}" y1="13" y2="13"/>'
        f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="3" y2="23"/>'
        f'<line class="range" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="13" y2="13"/>'
        f'<circle class="mark" cx="{x(estimate):.1f}" cy="13" r="5"/></svg>'
    )


def rate_pair(base: float, final: float) -> str:
    """Two rates on one 0-1 axis: hollow before, filled after."""
    width, height = 132, 26
    x = _Scale(0.0, 1.0, 8, width - 8)
    tip = escape(f"before {percent(base)}, after {percent(final)}")
    return (
        f'<svg class="strip" viewBox="0 0 {width} {height}" role="img" aria-label="{tip}"><title>{tip}</title>'
        f'<line class="grid" x1="8" x2="{width - 8}" y1="13" y2="13"/>'
        f'<line class="range" x1="{x(base):.1f}" x2="{x(final):.1f}" y1="13" y2="13"/>'
        f'<circle class="before" cx="{x(base):.1f}" cy="13" r="5"/>'
        f'<circle class="mark" cx="{x(final):.1f}" cy="13" r="5"/></svg>'
    )
