"""The whole of Verify: grade, and where the rule says so grade again in fresh conditions and ask the oracle.

Called by the servicer. Every sandbox claimed here is deleted here, also when the caller goes away.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from longshore_common.errors import ErrorCode, InvalidSpec, LongshoreError, QuotaExceeded
from longshore_common.log import get_logger
from longshore_reward_verifier.domain.decision import NextStep, after_first_grade, after_oracle, after_regrade
from longshore_reward_verifier.domain.export import ExportedState, restore_state, take_state
from longshore_reward_verifier.domain.grading import Grader
from longshore_reward_verifier.domain.outcome import (
    Failure,
    Graded,
    GradeFailed,
    GradeResult,
    TamperResistance,
    Verdict,
)
from longshore_reward_verifier.domain.ports import GradedTask, Sandbox, Sandboxes, Tasks

log = get_logger(__name__)

SOLUTION_DIR = "/solution"


@dataclass(frozen=True)
class VerifyRequest:
    """What to grade. The ids are for provenance and for the labels of fresh sandboxes."""

    task_digest: str
    run_id: str
    attempt_id: str
    regrade: bool


@dataclass(frozen=True)
class VerifySettings:
    """Bounds of re-grades: bytes of exported state, re-grades at once, seconds a fresh sandbox outlives its use."""

    max_state_bytes: int
    max_regrades: int
    sandbox_slack_s: float


class Verifier:
    """Verify, without gRPC."""

    def __init__(self, tasks: Tasks, sandboxes: Sandboxes, grader: Grader, settings: VerifySettings) -> None:
        self._tasks, self._sandboxes, self._grader, self._settings = tasks, sandboxes, grader, settings
        self._regrades = asyncio.Semaphore(settings.max_regrades)

    async def verify(self, request: VerifyRequest, sandbox: Sandbox) -> Verdict:
        """Grades the sandbox. Never raises LongshoreError: a fault is a typed failure with its evidence."""
        try:
            task = await self._tasks.get(request.task_digest)
        except LongshoreError as error:
            return Verdict(GradeFailed(Failure.VERIFIER_SETUP, f"task {request.task_digest}: {error.message}"))
        sandbox = await self._with_image(sandbox)
        first = await self._grader.grade(sandbox, task, TamperResistance.WEAK)
        if isinstance(first, Graded) or after_first_grade(first, request.regrade) is not NextStep.REGRADE:
            return Verdict(first)
        async with self._regrades:
            log.info("grading again", attempt=request.attempt_id, failure=first.failure, evidence=first.evidence[:200])
            return await self._regrade(request, sandbox, task, first)

    async def _with_image(self, sandbox: Sandbox) -> Sandbox:
        try:
            end = await self._sandboxes.look_up(sandbox.sandbox_id)
        except LongshoreError:
            # Provenance is poorer without it; whether the sandbox lives is found out by grading.
            return sandbox
        return replace(sandbox, image_digest=end.image_digest)

    async def _regrade(self, request: VerifyRequest, sandbox: Sandbox, task: GradedTask, first: GradeFailed) -> Verdict:
        second = await self._grade_exported(request, sandbox, task, first)
        step = after_regrade(second)
        if isinstance(second, Graded):
            return Verdict(replace(second, regraded=True), first_failure=first)
        if step is NextStep.FAIL:
            # The re-grade itself fell to the infrastructure: it says nothing about the agent's state.
            return Verdict(_add_evidence(first, f"re-grade: {second.failure}: {second.evidence}"), first_failure=first)
        oracle = await self._grade_oracle(request, task)
        if isinstance(oracle, Graded) and after_oracle(oracle) is NextStep.BLAME_AGENT:
            return Verdict(_zero(second, task, oracle), agent_broke_verifier=True, first_failure=first)
        return Verdict(_add_evidence(second, f"oracle in fresh conditions: {_describe(oracle)}"), first_failure=first)

    async def _grade_exported(
        self, request: VerifyRequest, sandbox: Sandbox, task: GradedTask, first: GradeFailed
    ) -> GradeResult:
        """The agent's state in a fresh sandbox. State that cannot be taken out keeps the first failure's name."""
        try:
            state = await take_state(sandbox.agent, task.spec.workdir, self._settings.max_state_bytes)
        except LongshoreError as error:
            what = "the agent's state could not be exported"
            lost = await self._grader.explain(sandbox, error, what, Failure.SANDBOX_LOST)
            # Too large, or the folder is gone: that is the state's own fault, and the oracle judges it.
            return replace(lost, failure=first.failure) if lost.failure is Failure.REWARD_MISSING else lost
        if state is None:
            return GradeFailed(Failure.VERIFIER_SETUP, "the task's working folder is /: its state cannot be exported")
        return await self._grade_fresh(request, task, state, first)

    async def _grade_fresh(
        self, request: VerifyRequest, task: GradedTask, state: ExportedState, first: GradeFailed
    ) -> GradeResult:
        try:
            async with self._fresh(request, task) as fresh:
                try:
                    await restore_state(fresh.agent, state, task.spec.agent_user)
                except (InvalidSpec, QuotaExceeded) as error:
                    # State that no sandbox of this task can hold does not grade; it is not the infrastructure's fault.
                    return GradeFailed(first.failure, f"the agent's state could not be restored: {error.message}")
                return await self._grader.grade(fresh, task, TamperResistance.STRONG)
        except LongshoreError as error:
            return _claim_failure(error)

    async def _grade_oracle(self, request: VerifyRequest, task: GradedTask) -> GradeResult:
        if task.solution_tar is None:
            return GradeFailed(Failure.VERIFIER_SETUP, "the task has no solution/solve.sh")
        try:
            async with self._fresh(request, task) as fresh:
                await fresh.agent.upload(SOLUTION_DIR, task.solution_tar, tar=True, replace=True)
                await fresh.agent.exec(
                    task.solution_argv,
                    timeout_s=task.spec.agent_timeout_s,
                    env=task.spec.solution_env,
                    cwd=task.spec.workdir,
                    user=task.spec.agent_user,
                )
                return await self._grader.grade(fresh, task, TamperResistance.STRONG)
        except LongshoreError as error:
            return _claim_failure(error)

    @asynccontextmanager
    async def _fresh(self, request: VerifyRequest, task: GradedTask) -> AsyncIterator[Sandbox]:
        spec = task.spec
        ttl_s = spec.verifier_timeout_s + spec.agent_timeout_s + self._settings.sandbox_slack_s
        # Not cancelled half-way: a sandbox that was granted must be known, or it cannot be deleted.
        claim = asyncio.ensure_future(
            self._sandboxes.claim(request.task_digest, request.run_id, request.attempt_id, ttl_s)
        )
        try:
            yield await asyncio.shield(claim)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._release(claim)))

    async def _release(self, claim: "asyncio.Future[Sandbox]") -> None:
        try:
            sandbox = await claim
        except LongshoreError:
            return
        try:
            await self._sandboxes.delete(sandbox.sandbox_id)
        except LongshoreError as error:
            # Its time to live ends it; a reward must not be lost over it.
            log.warning("sandbox not deleted", sandbox=sandbox.sandbox_id, error=error.message)


def _claim_failure(error: LongshoreError) -> GradeFailed:
    failure = Failure.QUOTA if error.code is ErrorCode.QUOTA_EXCEEDED else Failure.SANDBOX_START
    return GradeFailed(failure, f"no fresh sandbox to grade in: {error.message}")


def _add_evidence(failed: GradeFailed, more: str) -> GradeFailed:
    return replace(failed, evidence=f"{failed.evidence}; {more}")


def _describe(result: GradeResult) -> str:
    return f"reward {result.reward:g}" if isinstance(result, Graded) else f"{result.failure}: {result.evidence}"


def _zero(failed: GradeFailed, task: GradedTask, oracle: Graded) -> Graded:
    """A reward of 0 that says what was run and where: the tests grade the oracle and not the agent's state."""
    return Graded(
        reward=0.0,
        keys={},
        file_name="",
        file_digest="",
        tests_digest=task.tests_digest,
        image_digest=failed.image_digest or oracle.image_digest,
        run=failed.run,
        tamper_resistance=TamperResistance.STRONG,
        regraded=True,
    )
