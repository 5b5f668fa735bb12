"""Platform health: is everything up, does it answer, is there room."""

from dashboards import reasons
from dashboards.model import Dashboard, Kind, Query, Row, panel, quantiles

_RATE = "[$__rate_interval]"

UP = Row(
    "Up",
    (
        panel(
            "Targets", Query("sum by (job) (up{@})", "{{job}}"), kind=Kind.TABLE, help="Pages that Prometheus can read."
        ),
        panel("Restarts", Query(f"sum by (job) (changes(process_start_time_seconds{{@}}{_RATE}))", "{{job}}")),
        panel("Runs by state", Query("sum by (state) (longshore_controller_runs{@})", "{{state}}"), kind=Kind.STACK),
    ),
)

GRPC = Row(
    "gRPC",
    (
        panel(
            "Calls",
            Query(f"sum by (server) (rate(longshore_grpc_calls_total{{@}}{_RATE}))", "{{server}}"),
            unit="reqps",
        ),
        panel(
            "Calls under way",
            Query(
                "sum by (server) (longshore_grpc_started_total{@}) - sum by (server) (longshore_grpc_calls_total{@})",
                "{{server}}",
            ),
            help="Long polls and watches are in it.",
        ),
        panel(
            "Errors by code",
            Query(
                f'sum by (server,code) (rate(longshore_grpc_calls_total{{@,code!="ok"}}{_RATE}))',
                "{{server}} {{code}}",
                reasons.NO_CLIENT_ERROR,
            ),
            unit="reqps",
            kind=Kind.STACK,
        ),
        panel(
            "Latency by server",
            *quantiles("longshore_grpc_seconds", "@", "server"),
            unit="s",
            help="Unary calls; LeaseAttempts and TakeBatch wait on purpose.",
        ),
        panel(
            "Slowest methods",
            Query(
                f"topk(8, histogram_quantile(0.95, sum by (le,server,method) "
                f"(rate(longshore_grpc_seconds_bucket{{@}}{_RATE}))))",
                "{{server}}.{{method}}",
            ),
            unit="s",
        ),
    ),
)

PROCESSES = Row(
    "Processes",
    (
        panel(
            "Memory",
            Query("sum by (job) (process_resident_memory_bytes{@})", "{{job}}"),
            Query("max(process_resident_memory_bytes{@})", "largest process"),
            unit="bytes",
        ),
        panel(
            "CPU",
            Query(f"sum by (job) (rate(process_cpu_seconds_total{{@}}{_RATE}))", "{{job}}"),
            Query(f"max(rate(process_cpu_seconds_total{{@}}{_RATE}))", "busiest process"),
        ),
        panel(
            "Open files",
            Query("max by (job) (process_open_fds{@} / process_max_fds{@})", "{{job}}"),
            unit="percentunit",
        ),
    ),
)

STORES = Row(
    "Stores",
    (
        panel(
            "Turns appended",
            Query(f"sum by (status) (rate(longshore_trajectory_turns_total{{@}}{_RATE}))", "{{status}}"),
            unit="ops",
            kind=Kind.STACK,
        ),
        panel("Append to commit", *quantiles("longshore_trajectory_append_seconds", "@"), unit="s"),
        panel("Turns per transaction", *quantiles("longshore_trajectory_append_batch", "@"), unit="none"),
        panel(
            "Attempts sealed",
            Query(f"sum by (kind) (increase(longshore_trajectory_sealed_total{{@}}{_RATE}))", "{{kind}}"),
            kind=Kind.STACK,
        ),
        panel(
            "Refused writes",
            Query(
                f"sum by (what) (increase(longshore_trajectory_refused_total{{@}}{_RATE}))",
                "{{what}}",
                reasons.NONE_REFUSED_WRITE,
            ),
        ),
        panel(
            "Wait in TakeBatch",
            *quantiles("longshore_trajectory_take_wait_seconds", "@", empty=reasons.NOT_TRAINED),
            unit="s",
        ),
        panel(
            "Probes by outcome",
            Query(
                f"sum by (state) (increase(longshore_catalog_probes_total{{@}}{_RATE}))", "{{state}}", reasons.NO_PROBE
            ),
        ),
        panel(
            "Tasks imported",
            Query(
                f"sum by (result) (increase(longshore_catalog_imports_total{{@}}{_RATE}))",
                "{{result}}",
                "no task was imported since the catalog started",
            ),
        ),
    ),
)

PLATFORM = Dashboard(
    "longshore-platform",
    "Longshore / Platform health",
    "Is everything up, does it answer, is there room.",
    (UP, GRPC, PROCESSES, STORES),
)
