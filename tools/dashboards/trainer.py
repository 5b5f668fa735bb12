"""Trainer: what the job does now and where its seconds go. Its page ends with the job; Run overview's figures stay."""

from dashboards import reasons
from dashboards.model import Dashboard, Kind, Query, Row, mean_and_worst, panel

_PAGE = reasons.NO_TRAINER_PAGE
_STEP = "longshore_trainer_step"


def _figure(key: str, legend: str = "{{run}}") -> Query:
    return Query(f"{_STEP}_{key}{{@run}}", legend, _PAGE)


def _seconds(part: str, empty: str = _PAGE) -> Query:
    return Query(f'{_STEP}_seconds{{@run,part="{part}"}}', f"{{{{run}}}} {part}", empty)


NOW = Row(
    "Now",
    (
        panel("Phase", Query("longshore_trainer_phase{@run} == 1", "{{run}} {{phase}}", _PAGE), kind=Kind.TABLE),
        panel("Step", _figure("number")),
        panel(
            "Incarnation",
            Query("longshore_controller_run_incarnation{@run}", "{{run}}"),
            help="Trainer jobs that the run has started; it grows with every restart.",
        ),
    ),
)

TIME = Row(
    "Time",
    (
        panel(
            "Step",
            *(_seconds(part) for part in ("wait_for_batch", "train", "checkpoint", "publish")),
            unit="s",
            kind=Kind.STACK,
        ),
        panel(
            "Update",
            *(_seconds(part) for part in ("forward", "backward", "optimizer")),
            _seconds("reference", f"{_PAGE}; {reasons.NO_REFERENCE}"),
            unit="s",
            kind=Kind.STACK,
        ),
        panel(
            "Tokens per second",
            Query(f'{_STEP}_tokens{{@run}} / on (run) {_STEP}_seconds{{@run,part="train"}}', "{{run}}", _PAGE),
            help="Trained tokens, while training.",
        ),
    ),
)

UPDATE = Row(
    "Update",
    (
        panel("Loss", _figure("loss"), unit="none"),
        panel("Gradient norm", _figure("grad_norm"), unit="none"),
        panel("Entropy", _figure("entropy"), unit="none"),
        panel(
            "Mismatch KL",
            _figure("mismatch_kl", "{{run}} mean"),
            _figure("mismatch_kl_max", "{{run}} worst token"),
            unit="none",
        ),
        panel(
            "Clip fraction",
            _figure("clip_fraction_high", "{{run}} high"),
            _figure("clip_fraction_low", "{{run}} low"),
            unit="percentunit",
        ),
        panel(
            "Zero-variance groups",
            Query(f"{_STEP}_zero_variance_groups{{@run}} / {_STEP}_groups{{@run}}", "{{run}}", _PAGE),
            unit="percentunit",
        ),
        panel(
            "Lag of what was trained on",
            _figure("staleness_mean", "{{run}} mean"),
            _figure("staleness_max", "{{run}} max"),
            unit="none",
        ),
        panel("Learning rate", _figure("learning_rate"), unit="none"),
    ),
)

MACHINE = Row(
    "Machine",
    (
        panel("Peak memory of rank 0", _figure("peak_rss_bytes"), unit="bytes"),
        panel(
            "GPU idle",
            *mean_and_worst(
                '1 - DCGM_FI_DEV_GPU_UTIL{namespace=~"$namespace",pod=~".*trainer.*"} / 100', reasons.NO_GPU
            ),
            unit="percentunit",
        ),
        panel(
            "GPU memory",
            *mean_and_worst('DCGM_FI_DEV_FB_USED{namespace=~"$namespace",pod=~".*trainer.*"}', reasons.NO_GPU),
            unit="decmbytes",
        ),
    ),
)

TRAINER = Dashboard(
    "longshore-trainer",
    "Longshore / Trainer",
    "What the trainer does now and where its seconds go.",
    (NOW, TIME, UPDATE, MACHINE),
)
