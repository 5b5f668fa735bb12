"""Alert rules. Each has a page in docs/runbooks that says what it means and what to do."""

from __future__ import annotations

from typing import Any

from dashboards import reasons
from dashboards.model import Alert

RUNBOOKS = "docs/runbooks"
_STEP = "longshore_controller_step"
_SERVICES = "|".join(
    (
        *("controller", "task-catalog", "sandbox-scheduler", "inference-gateway", "reward-verifier"),
        *("trajectory-store", "rollout-worker", "engine-.*"),
    )
)
_RUN = "by (namespace,release,run)"
_WHERE = "by (namespace,release)"


def _increase(counter: str, labels: str = "", by: str = _WHERE, window: str = "15m") -> str:
    return f"sum {by} (increase({counter}{labels}[{window}]))"


def _share(counter: str, labels: str, by: str = _WHERE) -> str:
    return f"{_increase(counter, labels, by)} / {_increase(counter, by=by)}"


def _p95(histogram: str) -> str:
    buckets = f"sum by (namespace,release,le) (rate({histogram}_bucket[15m]))"
    return f"histogram_quantile(0.95, {buckets})"


PLATFORM = (
    Alert(
        "LongshoreTargetDown",
        f'up{{component=~"{_SERVICES}"}}',
        "== 0",
        "5m",
        "critical",
        "{{ $labels.component }} {{ $labels.pod }} of {{ $labels.release }} does not answer Prometheus",
        "targets carry no label component: not scraped on Kubernetes",
    ),
    Alert(
        "LongshoreGrpcErrors",
        _share("longshore_grpc_calls_total", '{code=~"internal|unavailable"}', "by (namespace,release,server)"),
        "> 0.02",
        "15m",
        "warning",
        "{{ $labels.server }} fails {{ $value | humanizePercentage }} of its calls",
        "no call failed",
    ),
    Alert(
        "LongshoreStoreSlow",
        _p95("longshore_trajectory_append_seconds"),
        "> 0.5",
        "15m",
        "warning",
        "A turn takes {{ $value | humanizeDuration }} to become durable (95th percentile)",
    ),
)

RUNS = (
    Alert(
        "LongshoreRunFailed",
        'longshore_controller_run_state{state="failed"}',
        "== 1",
        "0m",
        "critical",
        "Run {{ $labels.run }} failed",
    ),
    Alert(
        "LongshoreRunStalled",
        "changes(longshore_controller_run_step[2h]) and on (namespace,release,run) "
        '(min_over_time(longshore_controller_run_state{state="training"}[2h]) == 1)',
        "== 0",
        "10m",
        "warning",
        "Run {{ $labels.run }} has trained no step for two hours",
        "no run is older than two hours",
    ),
    Alert(
        "LongshoreTrainerRestarts",
        _increase("longshore_controller_trainer_restarts_total", by=_RUN, window="1h"),
        "> 2",
        "0m",
        "warning",
        "The trainer of run {{ $labels.run }} died {{ $value | humanize }} times within an hour",
        reasons.NO_RESTART,
    ),
    Alert(
        "LongshoreSamplerMismatch",
        f"{_STEP}_mismatch_kl",
        "> 1e-3",
        "15m",
        "warning",
        "Sampler and trainer of run {{ $labels.run }} disagree: KL {{ $value }}",
        reasons.NOT_TRAINED,
    ),
    Alert(
        "LongshoreEntropyCollapse",
        f"{_STEP}_entropy / (max_over_time({_STEP}_entropy[1d]) > 0)",
        "< 0.1",
        "30m",
        "warning",
        "Entropy of run {{ $labels.run }} is {{ $value | humanizePercentage }} of what it was",
        reasons.NOT_TRAINED,
    ),
    Alert(
        "LongshoreNothingToLearn",
        f"avg_over_time({_STEP}_zero_variance_groups[1h]) / avg_over_time({_STEP}_groups[1h])",
        "> 0.8",
        "1h",
        "warning",
        "{{ $value | humanizePercentage }} of run {{ $labels.run }}'s groups have equal rewards",
        reasons.NOT_TRAINED,
    ),
    Alert(
        "LongshoreTrainerStarves",
        f'avg_over_time({_STEP}_seconds{{part="wait_for_batch"}}[1h]) / on (namespace,release,run) '
        f'sum {_RUN} (avg_over_time({_STEP}_seconds{{part=~"wait_for_batch|train|checkpoint|publish"}}[1h]))',
        "> 0.7",
        "1h",
        "info",
        "The trainer of run {{ $labels.run }} waits {{ $value | humanizePercentage }} of its time for groups",
        reasons.NOT_TRAINED,
    ),
)

ROLLOUTS = (
    Alert(
        "LongshoreNoWorkers",
        f'min {_WHERE} (longshore_controller_attempts{{state="queued"}}) unless on (namespace,release) '
        f"({_increase('longshore_controller_leases_total', window='10m')} > 0)",
        "> 0",
        "10m",
        "critical",
        "{{ $value }} attempts wait and no worker has taken any for ten minutes",
        "leases were granted",
    ),
    Alert(
        "LongshoreAttemptsFail",
        f"{_increase('longshore_controller_attempt_failures_total', by=_RUN)} / "
        f"{_increase('longshore_controller_leases_total', by=_RUN)}",
        "> 0.05",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the attempts of run {{ $labels.run }} fail",
        reasons.NO_ATTEMPT_FAILED,
    ),
    Alert(
        "LongshoreSandboxesDoNotStart",
        f"{_increase('longshore_sandbox_start_failures_total')} / {_increase('longshore_sandbox_starts_total')}",
        "> 0.1",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the claims give no sandbox",
        reasons.NO_START_FAILED,
    ),
    Alert(
        "LongshoreSandboxesSlow",
        _p95("longshore_sandbox_start_seconds"),
        "> 60",
        "15m",
        "warning",
        "A sandbox takes {{ $value | humanizeDuration }} to start (95th percentile)",
    ),
    Alert(
        "LongshoreVerdictsFail",
        _share("longshore_verifier_verdicts_total", '{result!~"scored|agent_broke_verifier"}'),
        "> 0.05",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the verifications give no reward",
        "every verification gave a verdict",
    ),
)

GATEWAY = (
    Alert(
        "LongshoreEngineLost",
        f'sum {_WHERE} (longshore_gateway_engines{{state=~"starting|fenced|stopped"}})',
        "> 0",
        "10m",
        "critical",
        "{{ $value }} engines have not been ready for ten minutes",
    ),
    Alert(
        "LongshoreGatewayErrors",
        _share("longshore_gateway_requests_total", '{status=~"5.."}'),
        "> 0.02",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the model calls end with an error of ours",
        "no call failed",
    ),
    Alert(
        "LongshoreEnginesOverloaded",
        f"sum {_WHERE} (longshore_gateway_queued_calls) / (sum {_WHERE} (longshore_gateway_in_flight_calls) > 0)",
        "> 2",
        "15m",
        "info",
        "{{ $value | humanize }} calls wait for each one at an engine",
        "no call was at an engine when Prometheus looked",
    ),
    Alert(
        "LongshoreTurnsUntrainable",
        f"{_increase('longshore_gateway_untrainable_turns_total')} / {_increase('longshore_gateway_turns_total')}",
        "> 0.01",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the turns may not be trained on",
    ),
    Alert(
        "LongshoreGatewayLags",
        f"max {_WHERE} (longshore_gateway_event_loop_lag_seconds)",
        "> 0.5",
        "10m",
        "warning",
        "The gateway's event loop is {{ $value | humanizeDuration }} late",
    ),
)

GROUPS = {
    "longshore.platform": PLATFORM,
    "longshore.runs": RUNS,
    "longshore.rollouts": ROLLOUTS,
    "longshore.gateway": GATEWAY,
}
ALERTS = tuple(alert for group in GROUPS.values() for alert in group)


def rules() -> dict[str, Any]:
    """A rule file of Prometheus; also what a PrometheusRule's `spec` holds."""
    return {"groups": [{"name": name, "rules": [_rule(alert) for alert in group]} for name, group in GROUPS.items()]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.for_,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": f"{RUNBOOKS}/{alert.name}.md"},
    }
