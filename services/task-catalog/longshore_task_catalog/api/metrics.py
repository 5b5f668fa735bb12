"""Prometheus metrics of the catalog."""

from prometheus_client import Counter

IMPORTS = Counter("longshore_catalog_imports", "Bundles that were imported", ["result"])
PROBES = Counter("longshore_catalog_probes", "Probes that ended, by the task's state afterwards", ["state", "cached"])
REFERENCES = Counter("longshore_catalog_references", "Reference groups that were recorded", ["state"])
