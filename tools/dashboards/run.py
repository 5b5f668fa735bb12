"""Run overview: is it learning, is it sane, who waits for whom."""

from dashboards import reasons
from dashboards.model import Dashboard, Kind, Query, Row, panel

_TRUNCATED = "agent_timeout|turn_limit|token_limit|context_exceeded"
_STEP = "longshore_controller_step"
_UNTRAINED = reasons.NOT_TRAINED


def _step(key: str, legend: str = "{{run}}") -> Query:
    return Query(f"{_STEP}_{key}{{@run}}", legend, _UNTRAINED)


def _seconds(part: str) -> Query:
    return Query(f'{_STEP}_seconds{{@run,part="{part}"}}', f"{{{{run}}}} {part}", _UNTRAINED)


_PARTS = ("wait_for_batch", "train", "checkpoint", "publish")
_ALL_PARTS = f'sum by (run) ({_STEP}_seconds{{@run,part=~"{"|".join(_PARTS)}"}})'


def _share(parts: str, legend: str) -> Query:
    return Query(f'sum by (run) ({_STEP}_seconds{{@run,part=~"{parts}"}}) / {_ALL_PARTS}', legend, _UNTRAINED)


def _lag(where: str, empty: str = "") -> tuple[Query, Query]:
    return tuple(  # type: ignore[return-value]
        Query(f'longshore_trajectory_lag{{@run,where="{where}",stat="{stat}"}}', f"{{{{run}}}} {where} {stat}", empty)
        for stat in ("mean", "max")
    )


SIGNAL = Row(
    "Signal: is it learning?",
    (
        panel(
            "State",
            Query("longshore_controller_run_state{@run} == 1", "{{run}} {{state}}"),
            kind=Kind.TABLE,
            help="Runs that have not ended, and those that ended within the last hour.",
        ),
        panel(
            "Progress",
            Query("longshore_controller_run_step{@run} / (longshore_controller_run_total_steps{@run} > 0)", "{{run}}"),
            unit="percentunit",
        ),
        panel(
            "Reward mean and solve rate",
            _step("reward_mean", "{{run}} reward"),
            _step("solve_rate", "{{run}} solved"),
            help="Of the scored attempts of the newest step; solved: reward 1 or more.",
        ),
        panel(
            "Zero-variance groups",
            Query(f"{_STEP}_zero_variance_groups{{@run}} / {_STEP}_groups{{@run}}", "{{run}}", _UNTRAINED),
            unit="percentunit",
            help="Groups whose attempts all got the same reward: they teach nothing.",
        ),
        panel(
            "Attempts of the step",
            _step("attempts_scored", "{{run}} scored"),
            _step("attempts_failed", "{{run}} failed"),
        ),
    ),
)

STABILITY = Row(
    "Stability: is it sane?",
    (
        panel("Entropy", _step("entropy"), unit="none", help="Nats per token. A fall towards 0 is a collapse."),
        panel(
            "Mismatch KL",
            _step("mismatch_kl", "{{run}} mean"),
            _step("mismatch_kl_max", "{{run}} worst token"),
            unit="none",
            help="Between sampler and trainer before the update, nats; mean beyond 1e-3: not one policy.",
        ),
        panel(
            "Clip fraction",
            _step("clip_fraction_high", "{{run}} high"),
            _step("clip_fraction_low", "{{run}} low"),
            unit="percentunit",
        ),
        panel("KL to the starting policy", _step("kl"), unit="none", help="0 while the run has no KL term."),
        panel("Gradient norm", _step("grad_norm"), unit="none"),
        panel(
            "Loss and learning rate", _step("loss", "{{run}} loss"), _step("learning_rate", "{{run}} rate"), unit="none"
        ),
    ),
)

SHAPE = Row(
    "Shape: what do attempts look like?",
    (
        panel(
            "Truncated attempts",
            Query(
                f'sum by (run) (increase(longshore_trajectory_sealed_total{{@run,kind="scored",label=~"{_TRUNCATED}"}}'
                '[$__rate_interval])) / sum by (run) (increase(longshore_trajectory_sealed_total{@run,kind="scored"}'
                "[$__rate_interval]))",
                "{{run}}",
                "no attempt was cut off",
            ),
            unit="percentunit",
            help="Ended by time, turns, tokens or context, of those that were scored.",
        ),
        panel(
            "How scored attempts ended",
            Query(
                'sum by (label) (increase(longshore_trajectory_sealed_total{@run,kind="scored"}[$__rate_interval]))',
                "{{label}}",
            ),
            kind=Kind.STACK,
        ),
        panel(
            "Attempts that came back, by cause",
            Query(
                "sum by (failure) (increase(longshore_controller_attempt_failures_total{@run}[$__rate_interval]))",
                "{{failure}}",
                reasons.NO_ATTEMPT_FAILED,
            ),
            kind=Kind.STACK,
            help="Retried ones too. More than 5% for long is a smell.",
        ),
        panel(
            "Discarded attempts, by reason",
            Query(
                "sum by (reason) (increase(longshore_trajectory_discarded_total{@run}[$__rate_interval]))",
                "{{reason}}",
                reasons.NONE_DISCARDED,
            ),
            kind=Kind.STACK,
        ),
        panel("Trained tokens per step", _step("tokens")),
    ),
)

SPEED = Row(
    "Speed: who waits for whom?",
    (
        panel("Seconds of the step", *(_seconds(part) for part in _PARTS), unit="s", kind=Kind.STACK),
        panel(
            "Who starves",
            _share("wait_for_batch", "{{run}} trainer: wait_for_batch"),
            _share("checkpoint|publish", "{{run}} rollouts: wait_for_ckpt"),
            unit="percentunit",
            help="Shares of the step. wait_for_batch: the trainer wants groups: more workers, engines, staleness. "
            "wait_for_ckpt: checkpoint and publish, while no new version reaches the engines.",
        ),
        panel(
            "Workers that wait for a lease",
            Query("sum(rate(longshore_controller_lease_wait_seconds_sum{@}[$__rate_interval]))", "workers"),
            help="Mean number of workers with room and nothing to do.",
        ),
        panel(
            "Lag in flight", *_lag("in_flight"), unit="none", help="Policy versions behind the trainer, while sampled."
        ),
        panel("Lag in queue", *_lag("in_queue"), unit="none", help="Of finished groups that wait for the trainer."),
        panel(
            "Lag of what was trained on",
            _step("staleness_mean", "{{run}} mean"),
            _step("staleness_max", "{{run}} max"),
            unit="none",
        ),
        panel("Attempts that wait or run", Query("longshore_controller_attempts{@run}", "{{run}} {{state}}")),
        panel("Training groups by state", Query("longshore_trajectory_groups{@run}", "{{run}} {{state}}")),
        panel(
            "Steps per hour", Query("deriv(longshore_controller_run_step{@run}[$__rate_interval]) * 3600", "{{run}}")
        ),
        panel(
            "Trainer restarts",
            Query(
                "sum by (run) (increase(longshore_controller_trainer_restarts_total{@run}[$__rate_interval]))",
                "{{run}}",
                reasons.NO_RESTART,
            ),
        ),
        panel(
            "Leases that ran out",
            Query(
                "sum by (run) (increase(longshore_controller_leases_expired_total{@run}[$__rate_interval]))",
                "{{run}}",
                reasons.NO_LEASE_LOST,
            ),
        ),
    ),
)

RUN = Dashboard(
    "longshore-run",
    "Longshore / Run overview",
    "Is the run learning, is it sane, what do its attempts look like, who waits for whom.",
    (SIGNAL, STABILITY, SHAPE, SPEED),
)
