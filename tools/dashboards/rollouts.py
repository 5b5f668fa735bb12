"""Rollouts and sandboxes: do attempts run, do sandboxes start, what breaks."""

from dashboards import reasons
from dashboards.model import Dashboard, Kind, Query, Row, mean_and_worst, panel, quantiles

_RATE = "[$__rate_interval]"


def _by(label: str, counter: str, empty: str = "") -> Query:
    return Query(f"sum by ({label}) (increase({counter}{{@}}{_RATE}))", f"{{{{{label}}}}}", empty)


ROLLOUTS_ROW = Row(
    "Attempts",
    (
        panel(
            "Attempts that run",
            Query("sum(longshore_rollout_running{@})", "all"),
            Query("max(longshore_rollout_running{@})", "busiest worker"),
            Query("min(longshore_rollout_running{@})", "idlest worker"),
        ),
        panel("How leases ended", _by("end", "longshore_rollout_attempts_total"), kind=Kind.STACK),
        panel("Seconds by phase", *quantiles("longshore_rollout_phase_seconds", "@", "phase"), unit="s"),
        panel(
            "Leases granted",
            Query(f"sum by (purpose) (rate(longshore_controller_leases_total{{@}}{_RATE}))", "{{purpose}}"),
            unit="ops",
        ),
        panel("Time to grant leases", *quantiles("longshore_controller_lease_seconds", "@"), unit="s"),
    ),
)

STARTS = Row(
    "Sandbox starts",
    (
        panel(
            "Cold starts",
            Query(f"sum by (le) (increase(longshore_sandbox_start_seconds_bucket{{@}}{_RATE}))", "{{le}}"),
            unit="s",
            kind=Kind.HEATMAP,
            help="From claim to ready; image and queue are in it.",
        ),
        panel("Start by launch", *quantiles("longshore_sandbox_start_seconds", "@", "launch"), unit="s"),
        panel(
            "Pool hit rate",
            Query(
                f'sum(increase(longshore_sandbox_pool_takes_total{{@,outcome="hit"}}{_RATE})) / '
                f"sum(increase(longshore_sandbox_pool_takes_total{{@}}{_RATE}))",
                "hits",
                reasons.NO_POOL,
            ),
            unit="percentunit",
            help="Claims for which a warm sandbox was there.",
        ),
        panel("Pool", Query("longshore_sandbox_pool{@}", "{{template}} {{state}}", reasons.NO_POOL)),
        panel(
            "Failures by cause",
            _by("cause", "longshore_sandbox_start_failures_total", reasons.NO_START_FAILED),
            kind=Kind.STACK,
            help="Claims that gave no sandbox.",
        ),
        panel("Starts", _by("outcome", "longshore_sandbox_starts_total"), kind=Kind.STACK),
    ),
)

PLACES = Row(
    "Places",
    (
        panel(
            "Sandboxes and places",
            Query("sum(longshore_sandbox_active{@})", "active"),
            Query("sum(longshore_sandbox_places{@})", "places"),
        ),
        panel("Claims that wait", Query("sum(longshore_sandbox_waiting{@})", "waiting", "no claim had to wait")),
        panel("Wait for a place", *quantiles("longshore_sandbox_queue_seconds", "@"), unit="s"),
        panel("Refused claims", _by("runtime", "longshore_sandbox_refused_total", reasons.NONE_REFUSED)),
        panel("How sandboxes ended", _by("reason", "longshore_sandbox_ends_total"), kind=Kind.STACK),
    ),
)

INSIDE = Row(
    "Inside",
    (
        panel(
            "Command overhead",
            *quantiles("longshore_sandbox_exec_overhead_seconds", "@"),
            unit="s",
            help="Round trip of a command beyond its own run time, as workers and verifiers see it.",
        ),
        panel("Commands", Query(f"sum(rate(longshore_sandbox_execs_total{{@}}{_RATE}))", "commands"), unit="ops"),
        panel(
            "Image builds", *quantiles("longshore_sandbox_image_build_seconds", "@", empty=reasons.NO_BUILD), unit="s"
        ),
        panel(
            "Putting a task's files in",
            *quantiles("longshore_sandbox_layer_seconds", "@", empty=reasons.NO_LAYERS),
            unit="s",
        ),
        panel("Objects swept", _by("kind", "longshore_sandbox_swept_total", reasons.NONE_SWEPT)),
        panel(
            "Kubernetes API calls", _by("code", "longshore_sandbox_api_calls_total", reasons.NO_PODS), kind=Kind.STACK
        ),
        panel("Broken watches", _by("resource", "longshore_sandbox_watch_breaks_total", reasons.NO_BREAK)),
    ),
)

VERIFIER = Row(
    "Verdicts",
    (
        panel("Verdicts", _by("result", "longshore_verifier_verdicts_total"), kind=Kind.STACK),
        panel("Time to a verdict", *quantiles("longshore_verifier_seconds", "@"), unit="s"),
        panel("Verdicts under way", *mean_and_worst("longshore_verifier_in_flight{@}")),
        panel("Re-grades by first failure", _by("failure", "longshore_verifier_regrades_total", reasons.NO_REGRADE)),
    ),
)

ROLLOUTS = Dashboard(
    "longshore-rollouts",
    "Longshore / Rollouts and sandboxes",
    "Do attempts run, do sandboxes start, what breaks, what do verdicts say.",
    (ROLLOUTS_ROW, STARTS, PLACES, INSIDE, VERIFIER),
)
