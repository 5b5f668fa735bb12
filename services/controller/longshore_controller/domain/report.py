"""The report of a run: what `report.json` holds, as a documented model. Seconds and token counts are sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import BaseModel, ConfigDict

from longshore_controller.domain.evaluation import AttemptResult, Comparison, Side, side
from longshore_controller.domain.plan import ExcludedTask, ResolvedPlan
from longshore_controller.domain.records import (
    AttemptCounts,
    EventRecord,
    PolicyInfo,
    RunRecord,
    RunTask,
    StepRecord,
    StepTimes,
    WorkTotals,
)
from longshore_controller.domain.run_state import ACTIVE
from longshore_controller.domain.verdict import Decision, decide
from longshore_controller.domain.vocabulary import EventKind, RunState, SplitName, StepPhase, Verdict

_STEP_KEYS = (
    "reward_mean", "solve_rate", "loss", "entropy", "kl", "mismatch_kl", "clip_fraction", "tokens",
    "zero_variance_groups",
)  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReportRun(_Model):
    """Which run."""

    run_id: str
    name: str
    state: RunState
    state_reason: str
    seed: int
    alias: str
    plan_digest: str
    created_at_ms: int
    finished_at_ms: int
    """0 while it goes on."""
    incarnations: int
    """Trainer incarnations; more than one or two mean restarts or resumes."""


class ReportAttempts(_Model):
    """planned + refilled = scored + failed + discarded + open, always; retried is counted beside."""

    planned: int
    refilled: int
    scored: int
    failed: int
    discarded: int
    open: int
    retried: int
    by_termination: dict[str, int]
    by_failure: dict[str, int]
    by_discard: dict[str, int]


class ReportVersion(_Model):
    """One policy version."""

    version: int
    kind: str
    state: str
    digest: str
    served_name: str
    published_at_ms: int


class ReportPolicy(_Model):
    """The policies of the run."""

    versions: list[ReportVersion]
    base_digest: str
    """Tree digest of version 0."""
    tokenizer_digest: str
    template_digest: str


class ReportSeconds(_Model):
    """Where a step's time went."""

    rollout: float
    """Wall time from the first lease to the last seal of the groups planned for this step."""
    verify: float
    """Sum of verifier seconds over those attempts; attempts overlap, so it can exceed `rollout`."""
    train: float
    publish: float
    wait_for_batch: float
    checkpoint: float


class ReportStep(_Model):
    """One trainer step; a metric that was not reported is null."""

    step: int
    reward_mean: float | None
    solve_rate: float | None
    loss: float | None
    entropy: float | None
    kl: float | None
    mismatch_kl: float | None
    clip_fraction: float | None
    tokens: float | None
    zero_variance_groups: float | None
    seconds: ReportSeconds
    other: dict[str, float]
    """Everything else that the trainer reported: grad_norm, learning_rate, ..."""


class ReportWarmStart(_Model):
    """The supervised start."""

    steps: int
    total_steps: int
    losses: list[tuple[int, float]]
    """(step, loss)"""


class SkillCount(_Model):
    """Tasks of one skill per split, and how many of the test ones each policy solved."""

    train: int
    dev: int
    test: int
    base_solved: int | None = None
    final_solved: int | None = None


class SkillOverlap(_Model):
    """How the skills of test relate to those of train. Contents are disjoint by digest; skills may overlap."""

    by_skill: dict[str, SkillCount]
    test_tasks_with_trained_skill: int
    test_tasks_with_new_skill: int
    test_tasks_without_skill: int


class ReportTasks(_Model):
    """The tasks of the run."""

    train: int
    dev: int
    test: int
    dataset_digest: str
    digests: dict[str, list[str]]
    excluded: list[ExcludedTask]
    skills: SkillOverlap


class DevPoint(_Model):
    """A dev panel."""

    step: int
    n: int
    solved: int
    rate: float
    scored: int
    rate_scored: float | None


class Evidence(_Model):
    """Two axes: what was shown, and on what. Neither is promoted by name."""

    shown: str
    """"probed", or "trained" when gradients were applied and the result evaluated."""
    on: str
    """"cpu" or "gpu"."""


class CostSide(_Model):
    """Costs of the attempts of one purpose."""

    attempts: int
    prompt_tokens: int
    completion_tokens: int
    agent_s: float
    verifier_s: float


class ReportCosts(_Model):
    """What the run took."""

    train: CostSide
    evaluation: CostSide
    trainer_s: float
    """Seconds of updates, checkpoints and publishes."""


class ReportEvents(_Model):
    """Events in short; all of them are at /v1/runs/<id>/events."""

    by_kind: dict[str, int]
    states: list[tuple[int, str]]
    """(milliseconds since the epoch, state)"""


class Report(_Model):
    """`report.json`."""

    schema_version: int = 1
    run: ReportRun
    verdict: Verdict | None
    """None until the test panels are done."""
    decision: Decision | None
    wall_s: float
    """From submission to the end (or to now), interruptions included."""
    active_s: float
    """Without the time in which the run was interrupted, stopped or waiting for its turn."""
    panels: list[Comparison]
    attempts: ReportAttempts
    """Training attempts."""
    evaluation_attempts: ReportAttempts
    policy: ReportPolicy
    steps: list[ReportStep]
    warm_start: ReportWarmStart | None
    tasks: ReportTasks
    dev_curve: list[DevPoint]
    evidence: Evidence
    costs: ReportCosts
    events: ReportEvents


@dataclass(frozen=True)
class ReportInput:
    """All that a report is computed from."""

    run: RunRecord
    plan: ResolvedPlan
    tasks: Sequence[RunTask]
    events: Sequence[EventRecord]
    steps: Sequence[StepRecord]
    step_times: Mapping[int, StepTimes]
    comparison: Comparison | None
    results: Mapping[str, Sequence[AttemptResult]]
    """Attempts per panel name, for the dev curve and the skills."""
    train_counts: AttemptCounts
    eval_counts: AttemptCounts
    train_totals: WorkTotals
    eval_totals: WorkTotals
    policies: Sequence[PolicyInfo]
    platform: str
    now_ms: int


def build_report(source: ReportInput) -> Report:
    """The report of a run, finished or not."""
    decision = decide(source.comparison) if source.comparison is not None else None
    end_ms = source.run.finished_at_ms or source.now_ms
    trained = source.run.step > 0 and source.comparison is not None
    return Report(
        run=_run(source.run),
        verdict=decision.verdict if decision else None,
        decision=decision,
        wall_s=(end_ms - source.run.created_at_ms) / 1000,
        active_s=active_seconds(source.events, end_ms),
        panels=[source.comparison] if source.comparison is not None else [],
        attempts=ReportAttempts(**asdict(source.train_counts)),
        evaluation_attempts=ReportAttempts(**asdict(source.eval_counts)),
        policy=_policy(source),
        steps=[_step(record, source.step_times.get(record.step)) for record in source.steps if _is_train(record)],
        warm_start=_warm_start(source.steps),
        tasks=_tasks(source),
        dev_curve=_dev_curve(source.results),
        evidence=Evidence(shown="trained" if trained else "probed", on=source.platform),
        costs=_costs(source),
        events=_events(source.events),
    )


def active_seconds(events: Sequence[EventRecord], end_ms: int) -> float:
    """Sum of the time between state events in which the run was in an active state."""
    total, since = 0, None
    for event in events:
        if event.kind is not EventKind.RUN_STATE:
            continue
        active = RunState(str(event.data["state"])) in ACTIVE
        if since is not None and not active:
            total += event.at_ms - since
            since = None
        elif since is None and active:
            since = event.at_ms
    if since is not None:
        total += max(0, end_ms - since)
    return total / 1000


def _is_train(record: StepRecord) -> bool:
    return record.phase is StepPhase.TRAIN


def _run(run: RunRecord) -> ReportRun:
    return ReportRun(
        run_id=run.run_id,
        name=run.name,
        state=run.state,
        state_reason=run.state_reason,
        seed=run.seed,
        alias=run.alias,
        plan_digest=run.plan_digest,
        created_at_ms=run.created_at_ms,
        finished_at_ms=run.finished_at_ms,
        incarnations=run.incarnation,
    )


def _policy(source: ReportInput) -> ReportPolicy:
    fields = ("version", "kind", "state", "digest", "served_name", "published_at_ms")
    return ReportPolicy(
        versions=[
            ReportVersion(**{name: getattr(policy, name) for name in fields})
            for policy in sorted(source.policies, key=lambda policy: policy.version)
        ],
        base_digest=source.run.base_digest,
        tokenizer_digest=source.plan.model.tokenizer_digest,
        template_digest=source.plan.model.template_digest,
    )


def _step(record: StepRecord, times: StepTimes | None) -> ReportStep:
    seconds = record.seconds
    return ReportStep(
        step=record.step,
        **{key: record.metrics.get(key) for key in _STEP_KEYS},
        seconds=ReportSeconds(
            rollout=times.rollout_s if times else 0.0,
            verify=times.verify_s if times else 0.0,
            train=seconds.get("train", 0.0),
            publish=seconds.get("publish", 0.0),
            wait_for_batch=seconds.get("wait_for_batch", 0.0),
            checkpoint=seconds.get("checkpoint", 0.0),
        ),
        other={key: value for key, value in record.metrics.items() if key not in _STEP_KEYS},
    )


def _warm_start(steps: Sequence[StepRecord]) -> ReportWarmStart | None:
    warm = [record for record in steps if record.phase is StepPhase.WARM_START]
    if not warm:
        return None
    losses = [(record.step, record.metrics["loss"]) for record in warm if "loss" in record.metrics]
    return ReportWarmStart(steps=warm[-1].step, total_steps=warm[-1].total_steps, losses=losses)


def _tasks(source: ReportInput) -> ReportTasks:
    digests = source.plan.tasks
    return ReportTasks(
        train=len(digests.get(SplitName.TRAIN, ())),
        dev=len(digests.get(SplitName.DEV, ())),
        test=len(digests.get(SplitName.TEST, ())),
        dataset_digest=source.plan.dataset_digest,
        digests={split: list(values) for split, values in digests.items()},
        excluded=list(source.plan.excluded),
        skills=_skills(source),
    )


def _skills(source: ReportInput) -> SkillOverlap:
    counts: dict[str, Counter[str]] = {}
    for task in source.tasks:
        if task.skill:
            counts.setdefault(task.skill, Counter())[task.split] += 1
    skill_of = {task.digest: task.skill for task in source.tasks}
    solved = {
        name: Counter(skill_of.get(r.task_digest, "") for r in source.results.get(f"test:{name}", ()) if r.solved)
        for name in ("base", "final")
    }
    judged = source.comparison is not None
    test = [task.skill for task in source.tasks if task.split == SplitName.TEST]
    return SkillOverlap(
        by_skill={
            skill: SkillCount(
                train=split[SplitName.TRAIN],
                dev=split[SplitName.DEV],
                test=split[SplitName.TEST],
                base_solved=solved["base"][skill] if judged else None,
                final_solved=solved["final"][skill] if judged else None,
            )
            for skill, split in sorted(counts.items())
        },
        test_tasks_with_trained_skill=sum(bool(s) and counts[s][SplitName.TRAIN] > 0 for s in test),
        test_tasks_with_new_skill=sum(bool(s) and counts[s][SplitName.TRAIN] == 0 for s in test),
        test_tasks_without_skill=sum(not s for s in test),
    )


def _dev_curve(results: Mapping[str, Sequence[AttemptResult]]) -> list[DevPoint]:
    points = []
    for panel, rows in results.items():
        if panel.startswith("dev@") and rows:
            figures: Side = side(rows)
            points.append(
                DevPoint(
                    step=int(panel.removeprefix("dev@")),
                    n=figures.attempts,
                    solved=figures.solved,
                    rate=figures.rate,
                    scored=figures.scored,
                    rate_scored=figures.scored_rate,
                )
            )
    return sorted(points, key=lambda point: point.step)


def _costs(source: ReportInput) -> ReportCosts:
    spent = ("train", "checkpoint", "publish")
    return ReportCosts(
        train=CostSide(**asdict(source.train_totals)),
        evaluation=CostSide(**asdict(source.eval_totals)),
        trainer_s=sum(record.seconds.get(key, 0.0) for record in source.steps for key in spent),
    )


def _events(events: Sequence[EventRecord]) -> ReportEvents:
    return ReportEvents(
        by_kind=dict(Counter(event.kind.value for event in events)),
        states=[(e.at_ms, str(e.data["state"])) for e in events if e.kind is EventKind.RUN_STATE],
    )
