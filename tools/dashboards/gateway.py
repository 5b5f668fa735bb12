"""Gateway and engines: is the model served, who waits, is the cache full, are GPUs idle."""

from dashboards import reasons
from dashboards.model import Dashboard, Kind, Query, Row, mean_and_worst, panel, quantiles

_RATE = "[$__rate_interval]"
_PAGE = reasons.NO_VLLM_PAGE


def _mean(name: str, legend: str) -> Query:
    of = f"longshore_gateway_{name}_seconds"
    return Query(f"sum(rate({of}_sum{{@}}{_RATE})) / sum(rate({of}_count{{@}}{_RATE}))", legend)


CALLS = Row(
    "Calls",
    (
        panel(
            "Calls at engines and waiting",
            Query("sum(longshore_gateway_in_flight_calls{@})", "at engines"),
            Query("sum(longshore_gateway_queued_calls{@})", "waiting"),
            Query("sum(longshore_gateway_open_sessions{@})", "open sessions"),
        ),
        panel(
            "Answers by status",
            Query(f"sum by (status) (rate(longshore_gateway_requests_total{{@}}{_RATE}))", "{{status}}"),
            unit="reqps",
            kind=Kind.STACK,
        ),
        panel("Latency", *quantiles("longshore_gateway_request_seconds", "@"), unit="s"),
        panel(
            "Where a call's time goes",
            _mean("engine", "engine"),
            _mean("queue", "queue"),
            _mean("overhead", "overhead"),
            unit="s",
            kind=Kind.STACK,
        ),
        panel("Wait for an engine", *quantiles("longshore_gateway_queue_seconds", "@"), unit="s"),
        panel(
            "Tokens per second", Query(f"sum by (kind) (rate(longshore_gateway_tokens_total{{@}}{_RATE}))", "{{kind}}")
        ),
        panel("Event loop lag", Query("max(longshore_gateway_event_loop_lag_seconds{@})", "lag"), unit="s"),
    ),
)

CAPTURE = Row(
    "Capture",
    (
        panel(
            "Captured turns",
            Query(f"sum by (status) (rate(longshore_gateway_turns_total{{@}}{_RATE}))", "{{status}}"),
            unit="ops",
            kind=Kind.STACK,
        ),
        panel(
            "Turns that may not be trained on",
            Query(f"sum(increase(longshore_gateway_untrainable_turns_total{{@}}{_RATE}))", "turns"),
        ),
        panel(
            "Repeated requests that joined the first",
            Query(f"sum(increase(longshore_gateway_coalesced_requests_total{{@}}{_RATE}))", "requests"),
        ),
        panel("Turn appends", *quantiles("longshore_trajectory_append_seconds", "@"), unit="s"),
        panel(
            "Bytes of turns written",
            Query(f"sum(rate(longshore_trajectory_turn_bytes_total{{@}}{_RATE}))", "bytes"),
            unit="Bps",
        ),
    ),
)

POLICIES = Row(
    "Policies",
    (
        panel("Version of each alias", Query("longshore_gateway_policy_version{@}", "{{alias}}"), unit="none"),
        panel(
            "Publishes",
            Query(f"sum by (kind) (increase(longshore_gateway_publish_seconds_count{{@}}{_RATE}))", "{{kind}}"),
        ),
        panel(
            "Time to publish",
            *quantiles("longshore_gateway_publish_seconds", "@", "kind"),
            unit="s",
            help="Until every engine confirmed the version.",
        ),
    ),
)

ENGINES = Row(
    "Engines",
    (
        panel("Engines by state", Query("sum by (state) (longshore_gateway_engines{@})", "{{state}}"), kind=Kind.STACK),
        panel(
            "Hosts by state",
            Query("sum by (state) (longshore_engine_host_state{@})", "{{state}}", reasons.NO_HOSTS),
            kind=Kind.STACK,
        ),
        panel(
            "Engines that died",
            Query(f"sum(increase(longshore_engine_host_failures_total{{@}}{_RATE}))", "engines", reasons.NO_HOSTS),
        ),
        panel(
            "Engine starts", *quantiles("longshore_engine_host_start_seconds", "@", empty=reasons.NO_HOSTS), unit="s"
        ),
    ),
)

VLLM = Row(
    "vLLM's own figures",
    (
        panel("Requests that run", *mean_and_worst("vllm:num_requests_running{@}", _PAGE)),
        panel("Requests that wait", *mean_and_worst("vllm:num_requests_waiting{@}", _PAGE)),
        panel("KV cache in use", *mean_and_worst("vllm:kv_cache_usage_perc{@}", _PAGE), unit="percentunit"),
        panel("Preemptions", *mean_and_worst(f"increase(vllm:num_preemptions_total{{@}}{_RATE})", _PAGE)),
        panel(
            "Generated tokens per second and engine",
            *mean_and_worst(f"rate(vllm:generation_tokens_total{{@}}{_RATE})", _PAGE, worst="min"),
        ),
        panel(
            "Prompt tokens per second and engine",
            *mean_and_worst(f"rate(vllm:prompt_tokens_total{{@}}{_RATE})", _PAGE, worst="min"),
        ),
        panel("Time to first token", *quantiles("vllm:time_to_first_token_seconds", "@", empty=_PAGE), unit="s"),
        panel("Time between tokens", *quantiles("vllm:inter_token_latency_seconds", "@", empty=_PAGE), unit="s"),
        panel(
            "Prefix cache hits",
            Query(
                f"sum(rate(vllm:prefix_cache_hits_total{{@}}{_RATE})) / "
                f"sum(rate(vllm:prefix_cache_queries_total{{@}}{_RATE}))",
                "hits",
                _PAGE,
            ),
            unit="percentunit",
        ),
        panel(
            "Finished requests",
            Query(
                f"sum by (finished_reason) (rate(vllm:request_success_total{{@}}{_RATE}))", "{{finished_reason}}", _PAGE
            ),
            unit="reqps",
            kind=Kind.STACK,
        ),
    ),
)

GPUS = Row(
    "GPUs",
    (
        panel(
            "GPU idle",
            *mean_and_worst('1 - DCGM_FI_DEV_GPU_UTIL{namespace=~"$namespace"} / 100', reasons.NO_GPU),
            unit="percentunit",
            help="Of the pods of this namespace; the worst is the idlest.",
        ),
        panel(
            "GPU memory",
            *mean_and_worst('DCGM_FI_DEV_FB_USED{namespace=~"$namespace"}', reasons.NO_GPU),
            unit="decmbytes",
        ),
    ),
)

GATEWAY = Dashboard(
    "longshore-gateway",
    "Longshore / Gateway and engines",
    "Is the model served, who waits for an engine, is the cache full, is every turn captured.",
    (CALLS, CAPTURE, POLICIES, ENGINES, VLLM, GPUS),
)
