"""A run from end to end against the real trajectory store, with deaths at every point of the commit order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore_common.errors import Unavailable
from longshore_controller.domain.report import Report
from longshore_controller.domain.vocabulary import EventKind, RunState, Verdict

from .builders import SPEC
from .conftest import Harbor, Living

STEPS, GROUPS, SIZE = 3, 2, 2


async def check_trained_once(harbor: Harbor, run_id: str) -> None:
    """Every slot was trained on exactly once, none was lost, and the ledger adds up."""
    groups = (await harbor.stub.ListGroups(pb.ListGroupsRequest(run_id=run_id, purpose=pb.PURPOSE_TRAIN))).groups
    consumed = [group for group in groups if group.state == pb.GROUP_STATE_CONSUMED]
    assert Counter(group.consumed_step for group in consumed) == dict.fromkeys(range(1, STEPS + 1), GROUPS)
    slots = Counter(group.group_id.split("-r")[0] for group in consumed)
    assert len(slots) == STEPS * GROUPS
    assert set(slots.values()) == {1}
    counts = (await harbor.stub.GetCounts(pb.GetCountsRequest(run_id=run_id, purpose=pb.PURPOSE_TRAIN))).counts
    total = counts.scored + counts.failed + counts.discarded + counts.open
    assert counts.planned + counts.refilled == total
    assert counts.planned == STEPS * GROUPS * SIZE


async def report_of(living: Living, run_id: str) -> Report:
    return Report.model_validate_json(await living.parts.application.reports.report_json(run_id))


async def test_whole_run(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        living.worker.reward = lambda lease, version: float(version > 0)
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
        assert (ended.state, ended.state_reason) == (RunState.SUCCEEDED, "")
        await check_trained_once(harbor, run.run_id)
        report = await report_of(living, run.run_id)
        events = await living.parts.application.queries.events(run.run_id, 0, 0)
    assert report.verdict is Verdict.IMPROVED
    (panel,) = report.panels
    assert (panel.name, panel.n, panel.wins, panel.base.solved, panel.final.solved) == ("test", 8, 8, 0, 8)
    assert panel.mcnemar_p == pytest.approx(2 / 256)
    assert [(point.step, point.rate) for point in report.dev_curve] == [(0, 0.0), (2, 1.0), (3, 1.0)]
    assert [step.step for step in report.steps] == [1, 2, 3]
    assert report.steps[0].seconds.rollout > 0
    assert report.steps[0].seconds.verify == pytest.approx(4 * 0.25)
    assert report.steps[0].seconds.train == 1.0
    assert report.steps[0].other == {"grad_norm": 1.0}
    assert report.attempts.scored == report.attempts.planned == 12
    assert report.evaluation_attempts.planned == 3 * 2 + 2 * 8
    assert [version.version for version in report.policy.versions] == [0, 1, 2, 3]
    assert report.policy.base_digest == "sha256:v0"
    assert report.evidence.shown == "trained"
    assert report.evidence.on == "cpu"
    assert report.tasks.skills.test_tasks_with_trained_skill == 8
    assert report.warm_start is not None
    assert report.warm_start.losses == [(10, 2.5)]
    assert harbor.gateway.retired == [run.run_id]
    states = [event.data["state"] for event in events if event.kind is EventKind.RUN_STATE]
    assert states == ["pending", "warming", "serving", "training", "evaluating", "succeeded"]
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)


async def test_a_gateway_that_restarts_between_two_calls_is_waited_for(harbor: Harbor) -> None:
    harbor.gateway.absences = {"publish_base": 2, "policy": 1, "policies": 1, "retire": 1}
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
        assert (ended.state, ended.state_reason) == (RunState.SUCCEEDED, "")
        async with asyncio.timeout(20):
            while not harbor.gateway.retired:
                await asyncio.sleep(0.02)
    assert not any(harbor.gateway.absences.values())


async def test_report_has_the_keys_of_the_issue(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        await living.until(run.run_id)
        report = json.loads(await living.parts.application.reports.report_json(run.run_id))
    assert {"run", "verdict", "wall_s", "panels", "attempts", "policy", "steps", "tasks"} <= report.keys()
    (panel,) = report["panels"]
    assert {
        "name",
        "n",
        "base",
        "final",
        "wins",
        "ties",
        "losses",
        "mcnemar_p",
        "tokens_ratio",
        "time_ratio",
    } <= panel.keys()
    assert {"solved", "rate"} <= panel["base"].keys()
    assert {
        "planned",
        "refilled",
        "scored",
        "failed",
        "discarded",
        "retried",
        "by_termination",
        "by_failure",
    } <= report["attempts"].keys()
    assert {"versions", "base_digest"} <= report["policy"].keys()
    step_keys = {"step", "reward_mean", "solve_rate", "loss", "entropy", "kl", "mismatch_kl", "clip_fraction", "tokens"}
    assert step_keys | {"zero_variance_groups", "seconds"} <= report["steps"][0].keys()
    assert {"rollout", "verify", "train", "publish"} <= report["steps"][0]["seconds"].keys()
    assert {"train", "test", "digests"} <= report["tasks"].keys()


async def test_evaluation_is_paired(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        await living.until(run.run_id)
        test = [lease for lease in living.worker.seen if "-test-" in lease.group_id]
    by_version = {
        version: {(lease.task_digest, lease.sampling.seed) for lease in test if lease.pinned_version == version}
        for version in (0, STEPS)
    }
    assert by_version[0] == by_version[STEPS]
    assert len(by_version[0]) == 8
    limits = {(lease.max_turns, lease.max_tokens, lease.agent_timeout_s) for lease in test}
    assert len(limits) == 1


POINTS = ["before batch", "before manifest", "before publish", "before commit", "before report"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "step"), [*((point, 1) for point in POINTS), *((point, STEPS) for point in POINTS[3:])]
)
async def test_trainer_dies_and_goes_on(harbor: Harbor, point: str, step: int) -> None:
    """Once at each point of the commit order: a new incarnation ends the work; every group is trained on once."""
    died: list[int] = []

    def die(at: str, incarnation: int, now: int) -> bool:
        if at == point and now == step and not died:
            died.append(incarnation)
            return True
        return False

    harbor.launcher.die = die
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
        assert (ended.state, ended.state_reason) == (RunState.SUCCEEDED, "")
        await check_trained_once(harbor, run.run_id)
        report = await report_of(living, run.run_id)
    assert died
    incarnations = [job.incarnation for job in harbor.launcher.launched]
    assert incarnations == sorted(set(incarnations))
    if not (point == "before report" and step == STEPS):
        assert report.events.by_kind["trainer.restart"] == 1


async def test_trainer_that_always_dies_fails_the_run_with_its_log(harbor: Harbor) -> None:
    harbor.launcher.die = lambda point, incarnation, step: point == "before batch"
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
    assert ended.state is RunState.FAILED
    assert "exit status 1" in ended.state_reason
    assert "last line of the trainer's log" in ended.state_reason


async def test_failed_run_resumes_and_succeeds(harbor: Harbor) -> None:
    """A failed run is closed in the trajectory store; its new trainer opens it again."""
    harbor.launcher.die = lambda point, incarnation, step: point == "before batch" and step == 2
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        assert (await living.until(run.run_id)).state is RunState.FAILED
        harbor.launcher.die = lambda *_: False
        await living.parts.manager.resume(run.run_id)
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED
        await check_trained_once(harbor, run.run_id)


async def test_failing_warm_start_is_tried_again(harbor: Harbor) -> None:
    first: list[int] = []
    harbor.launcher.die = lambda point, incarnation, step: (
        point == "sft" and not first and not first.append(incarnation)
    )
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED
    assert [job.kind for job in harbor.launcher.launched] == ["sft", "sft", "rl"]


async def test_engine_that_does_not_start_fails_the_run_with_one_clear_error(harbor: Harbor) -> None:
    harbor.gateway.broken = Unavailable("engine did not start: no such model; see the engine's log", retryable=False)
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
    assert ended.state is RunState.FAILED
    assert ended.state_reason == "engine did not start: no such model; see the engine's log"


PHASES = [RunState.WARMING, RunState.SERVING, RunState.TRAINING, RunState.EVALUATING]


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_controller_is_killed_in_each_phase_and_resumes(harbor: Harbor, phase: RunState) -> None:
    """kill -9: nothing is written at the end; the next start finds the run, and a resume does the rest exactly once."""
    async with harbor.controller(kill=True) as living:
        harbor.gateway.gate.phase = phase
        run = await living.submit(SPEC)
        await living.until(run.run_id, phase)
    harbor.gateway.gate.phase = None
    async with harbor.controller() as living:
        found, _ = await living.parts.application.queries.get(run.run_id)
        assert found.state is RunState.INTERRUPTED
        await living.parts.manager.resume(run.run_id)
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED
        await check_trained_once(harbor, run.run_id)
        report = await report_of(living, run.run_id)
    assert report.panels[0].n == 8
    assert report.evaluation_attempts.planned == 3 * 2 + 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_stop_and_resume_in_each_phase(harbor: Harbor, phase: RunState) -> None:
    async with harbor.controller() as living:
        harbor.gateway.gate.phase = phase
        run = await living.submit(SPEC)
        await living.until(run.run_id, phase)
        stopped = await living.parts.manager.stop(run.run_id, "lunch")
        assert (stopped.state, stopped.state_reason) == (RunState.STOPPED, "lunch")
        harbor.gateway.gate.phase = None
        await living.parts.manager.resume(run.run_id)
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED
        await check_trained_once(harbor, run.run_id)


async def test_auto_resume(harbor: Harbor) -> None:
    harbor.settings = harbor.settings.model_copy(update={"auto_resume": True})
    async with harbor.controller(kill=True) as living:
        run = await living.submit(SPEC)
        await living.until(run.run_id, RunState.TRAINING)
    async with harbor.controller() as living:
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED


async def test_shutdown_interrupts_and_says_so(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        run = await living.submit(SPEC)
        await living.until(run.run_id, RunState.TRAINING)
    async with harbor.controller(serve=False) as living:
        found, _ = await living.parts.application.queries.get(run.run_id)
    assert found.state is RunState.INTERRUPTED
    assert "shut down" in found.state_reason


async def test_group_without_enough_scored_attempts_is_refilled(harbor: Harbor) -> None:
    """The first slot's attempts fail until their retries are used up: sealed as failed, refilled, trained on once."""
    async with harbor.controller() as living:

        def reward(lease: object, version: int) -> float | None:
            return None if lease.group_id.endswith("-t000000") else 1.0  # type: ignore[attr-defined]

        living.worker.reward = reward
        run = await living.submit(SPEC)
        ended = await living.until(run.run_id)
        assert (ended.state, ended.state_reason) == (RunState.SUCCEEDED, "")
        await check_trained_once(harbor, run.run_id)
        report = await report_of(living, run.run_id)
    assert report.attempts.failed == SIZE
    assert report.attempts.by_failure == {"sandbox_start": SIZE}
    assert report.attempts.refilled == SIZE
    assert report.attempts.retried == SIZE
    assert report.events.by_kind["group.refill"] == 1
    assert report.events.by_kind["attempt.retried"] == SIZE


async def test_failed_evaluation_attempts_count_as_unsolved(harbor: Harbor) -> None:
    async with harbor.controller() as living:

        def reward(lease: object, version: int) -> float | None:
            return None if "-test-final-00000" in lease.group_id else 1.0  # type: ignore[attr-defined]

        living.worker.reward = reward
        run = await living.submit(SPEC)
        await living.until(run.run_id)
        report = await report_of(living, run.run_id)
    (panel,) = report.panels
    assert (panel.final.solved, panel.final.attempts, panel.final.absent) == (7, 8, 1)
    assert panel.final.scored_rate == 1.0
    assert panel.losses == 1


async def test_one_run_at_a_time_and_the_next_follows(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        first = await living.submit(SPEC)
        second = await living.submit(SPEC)
        await living.until(first.run_id, RunState.TRAINING)
        assert (await living.parts.application.queries.get(second.run_id))[0].state is RunState.PENDING
        assert (await living.until(first.run_id)).state is RunState.SUCCEEDED
        assert (await living.until(second.run_id)).state is RunState.SUCCEEDED


async def test_one_step_off_keeps_the_next_step_in_flight(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        run = await living.submit(SPEC.replace("rollout: {", "rollout: {max_staleness: 1, "))
        ended = await living.until(run.run_id)
        assert (ended.state, ended.state_reason) == (RunState.SUCCEEDED, "")
        await check_trained_once(harbor, run.run_id)
