"""What the scheduler's Prometheus page adds to `top`."""

from __future__ import annotations

import urllib.error
import urllib.request

from longshore_cli.errors import CliError

_TIMEOUT_S = 5.0
SHOWN = {
    "longshore_sandbox_active": "places taken",
    "longshore_sandbox_places": "places",
    "longshore_sandbox_waiting": "claims waiting",
    "longshore_sandbox_refused_total": "claims refused",
    "longshore_sandbox_start_failures_total": "failed starts",
    "longshore_sandbox_execs_total": "commands ended",
    "longshore_sandbox_swept_total": "objects swept",
}
"""Sample name to what `top` calls it; summed over their labels."""


def read(address: str) -> dict[str, float]:
    """The figures of one scheduler's page at host:port. Raises CliError when there is no such page."""
    from prometheus_client.parser import text_string_to_metric_families

    url = f"http://{address}/metrics"
    # Loopback and cluster addresses must not go through a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise CliError(
            f"no metrics at {url}: {getattr(error, 'reason', error)}; "
            "the scheduler serves them at LONGSHORE_SANDBOX_SCHEDULER_METRICS_ADDRESS"
        ) from error
    samples = [sample for family in families for sample in family.samples]
    found: dict[str, float] = {}
    for name, shown in SHOWN.items():
        values = [sample.value for sample in samples if sample.name == name]
        if values:
            found[shown] = sum(values)
    return found
