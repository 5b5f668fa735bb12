"""What a dashboard and an alert are made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SELECTOR = 'namespace=~"$namespace",release=~"$release"'
RUN_SELECTOR = f'{SELECTOR},run=~"$run"'


class Kind(StrEnum):
    """How a panel draws."""

    LINES = "timeseries"
    STACK = "stack"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True)
class Query:
    """PromQL; `@run` and `@` stand for the dashboard's variables.

    empty: why it may have no answer on a platform that works; "" when it must have one.
    """

    expr: str
    legend: str = ""
    empty: str = ""

    def promql(self) -> str:
        """With Grafana's variables in it."""
        return selected(self.expr)


@dataclass(frozen=True)
class Panel:
    """One question. unit: Grafana's name of it."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    help: str = ""
    kind: Kind = Kind.LINES


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """uid: also its file's name and what links go by."""

    uid: str
    title: str
    help: str
    rows: tuple[Row, ...]

    def queries(self) -> list[tuple[str, Query]]:
        """(panel title, query), in order."""
        return [(panel.title, query) for row in self.rows for panel in row.panels for query in panel.queries]


@dataclass(frozen=True)
class Alert:
    """`value` compared with `bound`; what, why and how long.

    empty: why `value` may have no answer on a platform that works.
    """

    name: str
    value: str
    bound: str
    for_: str
    severity: str
    summary: str
    empty: str = ""

    @property
    def expr(self) -> str:
        """What Prometheus evaluates."""
        return f"{self.value} {self.bound}"


def selected(expr: str) -> str:
    """The expression with its selectors spelled out."""
    return expr.replace("@run", RUN_SELECTOR).replace("@", SELECTOR)


def panel(title: str, *queries: Query | str, unit: str = "short", help: str = "", kind: Kind = Kind.LINES) -> Panel:
    """A panel; a plain string is a query that must have an answer."""
    return Panel(title, tuple(Query(q) if isinstance(q, str) else q for q in queries), unit, help, kind)


def quantiles(metric: str, selector: str, by: str = "", empty: str = "") -> tuple[Query, ...]:
    """Median and 95th percentile of a histogram, apart by a label or not."""
    group, legend = (f"le,{by}", f" {{{{{by}}}}}") if by else ("le", "")
    buckets = f"sum by ({group}) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return tuple(
        Query(f"histogram_quantile({value}, {buckets})", f"p{round(100 * value)}{legend}", empty)
        for value in (0.5, 0.95)
    )


def mean_and_worst(expr: str, empty: str = "", worst: str = "max") -> tuple[Query, ...]:
    """A mean hides the one that is ill: both."""
    return (Query(f"avg({expr})", "mean", empty), Query(f"{worst}({expr})", "worst", empty))
