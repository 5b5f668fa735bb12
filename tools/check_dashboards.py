"""Asks a Prometheus every question of every dashboard and alert; prints what came back.

Exit status 0: each has data, or a stated reason to be empty; 1: one has neither, or Prometheus refuses it; 2: it does
not answer. A query is asked as its panel asks it, over a range, so what a finished trainer showed counts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dashboards.alerts import ALERTS
from dashboards.boards import DASHBOARDS
from dashboards.model import Query

OK, FINDING, NO_ANSWER = 0, 1, 2
_TIMEOUT_S = 30
_POINTS = 240


class Refused(Exception):
    """Prometheus does not take the expression."""


@dataclass(frozen=True)
class Question:
    """One expression, with the variables filled in."""

    where: str
    expr: str
    empty: str


@dataclass(frozen=True)
class Answer:
    """series 0: nothing came back. refused: why Prometheus did not take it."""

    question: Question
    series: int
    refused: str = ""

    @property
    def fine(self) -> bool:
        """Data, or a stated reason for none."""
        return not self.refused and (self.series > 0 or bool(self.question.empty))

    @property
    def says(self) -> str:
        """For the table."""
        if self.refused:
            return f"REFUSED: {self.refused}"
        if self.series:
            return f"{self.series} series"
        return f"empty: {self.question.empty}" if self.question.empty else "EMPTY, and nothing says why it may be"


@dataclass(frozen=True)
class Prometheus:
    """Its HTTP API, over the last lookback_s seconds."""

    url: str
    lookback_s: float

    def series(self, expr: str) -> int:
        """How many series have a number anywhere in the range. Raises Refused; OSError: no answer."""
        end = time.time()
        step = max(1.0, self.lookback_s / _POINTS)
        asked = {"query": expr, "start": f"{end - self.lookback_s:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found = self._get("query_range", asked)["result"]
        return sum(any(not math.isnan(float(value)) for _, value in one["values"]) for one in found)

    def _get(self, what: str, parameters: dict[str, str]) -> dict[str, Any]:
        url = f"{self.url.rstrip('/')}/api/v1/{what}"
        try:
            data = urllib.parse.urlencode(parameters).encode()
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=_TIMEOUT_S) as answer:
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error).get("error", str(error))) from error


def questions(variables: dict[str, str]) -> Iterator[Question]:
    """Of all dashboards. An alert's bound is left out: that nothing is wrong is no reason to know nothing."""
    for board in DASHBOARDS:
        for title, query in board.queries():
            yield Question(
                f"{board.title.removeprefix('Longshore / ')}: {title}", filled(query, variables), query.empty
            )
    for alert in ALERTS:
        yield Question(f"Alert {alert.name}", alert.value, alert.empty)


def filled(query: Query, variables: dict[str, str]) -> str:
    """The expression as Grafana would send it."""
    expr = query.promql()
    for name, value in variables.items():
        expr = expr.replace(f"${name}", value)
    return expr


def ask(prometheus: Prometheus, question: Question) -> Answer:
    """One answer."""
    try:
        return Answer(question, prometheus.series(question.expr))
    except Refused as error:
        return Answer(question, 0, str(error))


def table(answers: list[Answer]) -> str:
    """One line per question; the troubled ones bring their expression."""
    width = max(len(answer.question.where) for answer in answers)
    lines = []
    for answer in answers:
        mark = "ok  " if answer.series and not answer.refused else "-   " if answer.fine else "FAIL"
        lines.append(f"{mark} {answer.question.where:<{width}}  {answer.says}")
        if not answer.fine:
            lines.append(f"       {answer.question.expr}")
    return "\n".join(lines)


def options(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, metavar="URL", help="e.g. http://127.0.0.1:9090")
    parser.add_argument("--namespace", default=".*", help="the dashboards' variable, a regular expression (.*)")
    parser.add_argument("--release", default=".*", help="likewise")
    parser.add_argument("--run", default=".*", help="likewise")
    parser.add_argument("--lookback", type=float, default=1800, metavar="SECONDS", help="range of the panels (1800)")
    parser.add_argument("--window", default="5m", help="what $__rate_interval is (5m)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    given = options(arguments)
    prometheus = Prometheus(given.prometheus, given.lookback)
    names = {"__rate_interval": given.window, "namespace": given.namespace, "release": given.release, "run": given.run}
    try:
        answers = [ask(prometheus, question) for question in questions(names)]
        answers += [_whole(prometheus, alert.name, alert.expr) for alert in ALERTS]
    except OSError as error:
        print(f"error: {given.prometheus} does not answer: {error}; is this a Prometheus?", file=sys.stderr)
        return NO_ANSWER
    print(table(answers))
    bad = [answer for answer in answers if not answer.fine]
    data = sum(1 for answer in answers if answer.series)
    print(
        f"{len(answers)} expressions: {data} with data, {len(answers) - data - len(bad)} fine without, {len(bad)} not"
    )
    return FINDING if bad else OK


def _whole(prometheus: Prometheus, name: str, expr: str) -> Answer:
    question = Question(f"Alert {name}, with its bound", expr, "not firing")
    return ask(prometheus, question)


if __name__ == "__main__":
    raise SystemExit(main())
