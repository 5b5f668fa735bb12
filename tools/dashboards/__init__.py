"""Dashboards and alert rules as data: what is asked, in PromQL, and why an answer may be empty.

`tools/make_dashboards.py` writes the files of the chart from it; `tools/check_dashboards.py` asks a real Prometheus.
"""
