"""Counters of the scheduler; served on the process's Prometheus page."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

STARTS = Counter("longshore_sandbox_starts", "Sandboxes started", ["runtime", "outcome"])
START_SECONDS = Histogram(
    "longshore_sandbox_start_seconds", "From claim to ready, image and queue included, seconds", ["runtime", "launch"],
    buckets=(0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60, 240),
)  # fmt: skip
QUEUE_SECONDS = Histogram(
    "longshore_sandbox_queue_seconds", "Wait for a free place, seconds", ["runtime"],
    buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 240),
)  # fmt: skip
ACTIVE = Gauge("longshore_sandbox_active", "Sandboxes that hold a place", ["runtime"])
PLACES = Gauge("longshore_sandbox_places", "Sandboxes at a time, at most", ["runtime"])
EXECS = Counter("longshore_sandbox_execs", "Commands that ended", ["runtime"])
ENDS = Counter("longshore_sandbox_ends", "Sandboxes that ended", ["runtime", "reason"])
BUILDS = Histogram(
    "longshore_sandbox_image_build_seconds", "Builds of images, seconds", ["runtime"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600),
)  # fmt: skip
LAYER_SECONDS = Histogram(
    "longshore_sandbox_layer_seconds", "Putting a task's own files into a started pod, part of its claim, seconds",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
)  # fmt: skip
WAITING = Gauge("longshore_sandbox_waiting", "Claims that wait for a place", ["runtime"])
REFUSED = Counter("longshore_sandbox_refused", "Claims refused for want of a place", ["runtime"])
FAILURES = Counter("longshore_sandbox_start_failures", "Claims that gave no sandbox, by cause", ["runtime", "cause"])
SWEPT = Counter("longshore_sandbox_swept", "Objects removed because they had lost their sandbox", ["kind"])
POOL = Gauge("longshore_sandbox_pool", "Warm sandboxes by state: ready, starting, target", ["template", "state"])
POOL_TAKES = Counter("longshore_sandbox_pool_takes", "Claims by whether a warm sandbox was there", ["outcome"])
WATCH_BREAKS = Counter("longshore_sandbox_watch_breaks", "Watches that broke and were taken up again", ["resource"])
