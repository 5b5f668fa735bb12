"""A Dashboard as Grafana's JSON (schema 39). Deterministic: the files are checked in."""

from __future__ import annotations

from typing import Any

from dashboards.model import Dashboard, Kind, Panel, Query, Row

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8
_TYPES = {Kind.STACK: "timeseries", Kind.LINES: "timeseries"}


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in dashboard.rows:
        panels += _row(row, y, len(panels) + 1)
        y += 1 + _HEIGHT * -(-len(row.panels) // _COLUMNS)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.help,
        "tags": ["longshore"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "links": [
            {
                "type": "dashboards",
                "tags": ["longshore"],
                "title": "Longshore",
                "asDropdown": True,
                "keepTime": True,
                "includeVars": True,
                "targetBlank": False,
            }
        ],
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    known = {
        "namespace": "label_values(longshore_controller_runs, namespace)",
        "release": 'label_values(longshore_controller_runs{namespace=~"$namespace"}, release)',
        "run": 'label_values(longshore_controller_run_state{namespace=~"$namespace",release=~"$release"}, run)',
    }
    return [source, *(_variable(name, query) for name, query in known.items())]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 2 if name == "run" else 1,
        "multi": name == "run",
        "includeAll": True,
        # Matches also where the label is missing: one machine has no namespaces.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _row(row: Row, y: int, first_id: int) -> list[dict[str, Any]]:
    place = {"h": 1, "w": _COLUMNS * _WIDTH, "x": 0, "y": y}
    heading = {"id": first_id, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
    return [heading, *(_panel(panel, index, y + 1, first_id + 1) for index, panel in enumerate(row.panels))]


def _panel(panel: Panel, index: int, y: int, first_id: int) -> dict[str, Any]:
    line, column = divmod(index, _COLUMNS)
    return {
        "id": first_id + index,
        "type": _TYPES.get(panel.kind, panel.kind.value),
        "title": panel.title,
        "description": _description(panel),
        "datasource": _DATASOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": y + line * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _drawing(panel.kind)}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [_target(query, panel.kind, number) for number, query in enumerate(panel.queries)],
    }


def _description(panel: Panel) -> str:
    reasons = sorted({query.empty for query in panel.queries if query.empty})
    empty = f"Empty when: {'; '.join(reasons)}." if reasons else ""
    return " ".join(part for part in (panel.help, empty) if part)


def _drawing(kind: Kind) -> dict[str, Any]:
    if kind is Kind.STACK:
        return {"fillOpacity": 40, "lineWidth": 1, "showPoints": "never", "stacking": {"mode": "normal", "group": "A"}}
    if kind is Kind.LINES:
        return {"fillOpacity": 0, "lineWidth": 1, "showPoints": "never"}
    return {}


def _options(kind: Kind) -> dict[str, Any]:
    if kind is Kind.HEATMAP:
        return {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Oranges"},
            "yAxis": {"unit": "s"},
        }
    if kind is Kind.TABLE:
        return {"showHeader": True}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi"}}


def _target(query: Query, kind: Kind, number: int) -> dict[str, Any]:
    form = {Kind.HEATMAP: "heatmap", Kind.TABLE: "table"}.get(kind, "time_series")
    target = {
        "refId": chr(ord("A") + number),
        "datasource": _DATASOURCE,
        "expr": query.promql(),
        "legendFormat": query.legend,
        "format": form,
    }
    return target | ({"instant": True, "range": False} if kind is Kind.TABLE else {})
