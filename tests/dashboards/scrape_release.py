"""A real Prometheus that scrapes a release on the test cluster, from the node, as one in the cluster would.

`scraping` is for tests. By hand: `python tests/dashboards/scrape_release.py --namespace NS --release REL` scrapes until
Ctrl-C, or for --seconds, and then asks all expressions. The relabelling is that of docs/observability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_server import NotRun, base_configuration, check, check_rules, prometheus

_POD = "__meta_kubernetes_pod"
_LABEL = f"{_POD}_label_app_kubernetes_io"


def configuration(namespace: str, release: str, kubeconfig: str) -> dict[str, Any]:
    """Of Prometheus: every pod of the release, and the trainer's for as long as it lives."""
    discovery = {"role": "pod", "kubeconfig_file": kubeconfig, "namespaces": {"names": [namespace]}}
    ports = [f"{_LABEL}_component", f"{_POD}_container_port_name", f"{_POD}_container_port_number"]
    rules = [
        {"source_labels": [f"{_LABEL}_instance"], "regex": release, "action": "keep"},
        {"source_labels": ports, "regex": ".*;metrics;.*|engine-.*;.*;8000", "action": "keep"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_POD}_name"], "target_label": "pod"},
        {"source_labels": [f"{_LABEL}_instance"], "target_label": "release"},
        {"source_labels": [f"{_LABEL}_component"], "target_label": "component"},
        {"source_labels": ["release", "component"], "separator": "-", "target_label": "job"},
    ]
    job = {"job_name": "longshore", "kubernetes_sd_configs": [discovery], "relabel_configs": rules}
    return base_configuration() | {"scrape_configs": [job]}


@contextlib.contextmanager
def scraping(namespace: str, release: str, folder: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes the release while the block runs. Raises NotRun."""
    check_rules()
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not Path(kubeconfig).is_file():
        raise NotRun("KUBECONFIG names no file: run `make cluster-up` and the exports it names")
    with prometheus(folder, configuration(namespace, release, kubeconfig)) as url:
        yield url


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--release", required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long to scrape (until Ctrl-C)")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="longshore-dashboards-") as name:
        try:
            with scraping(options.namespace, options.release, Path(name)) as url:
                print(f"scraping at {url}", file=sys.stderr)
                with contextlib.suppress(KeyboardInterrupt):
                    while time.monotonic() - started < options.seconds:
                        time.sleep(1)
                chosen = ("--namespace", options.namespace, "--release", options.release)
                return check(url, time.monotonic() - started, *chosen)
        except NotRun as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    raise SystemExit(main())
