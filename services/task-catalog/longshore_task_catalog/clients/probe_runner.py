"""Runs oracle and nop: sandbox from the scheduler, solution by the in-sandbox agent, reward from the verifier.

Whatever happens, the sandbox is deleted, also when the probe is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from longshore.common.v1 import outcome_pb2
from longshore.sandbox.v1 import sandbox_pb2
from longshore.verifier.v1 import verifier_pb2
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import LongshoreError, QuotaExceeded, Unavailable
from longshore_common.log import get_logger
from longshore_common.retry import when_there_is_room
from longshore_common.sandbox_exec import ExecResult
from longshore_task_catalog.domain.model import Task
from longshore_task_catalog.domain.ports import ProbeRun

log = get_logger(__name__)

SOLUTION_FOLDER = "/solution"
# The image may lack bash; sh then has to do.
_SOLVE = ["sh", "-c", 'command -v bash >/dev/null 2>&1 && exec bash "$0"; exec sh "$0"', f"{SOLUTION_FOLDER}/solve.sh"]
_OUTPUT_CAP_BYTES = 64 * 1024
_DETAIL_CHARS = 400
# Beyond the tests' own timeout: upload of the tests, kill, download of the reward.
_VERIFIER_GRACE_S = 120.0
_DELETE_TIMEOUT_S = 30.0


class _Broken(Exception):
    """The run has no reward: why."""

    def __init__(self, failure: str, detail: str, image_digest: str = "") -> None:
        super().__init__(failure, detail, image_digest)
        self.failure, self.detail, self.image_digest = failure, detail, image_digest


class GrpcProbeRunner:
    """Implements domain.ports.ProbeRunner."""

    def __init__(self, scheduler: Any, verifier: Any, agents: AgentChannels, claim_timeout_s: float) -> None:
        """scheduler and verifier are gRPC stubs."""
        self._scheduler, self._verifier, self._agents = scheduler, verifier, agents
        self._claim_timeout_s = claim_timeout_s

    async def oracle(self, task: Task, solution_tar: bytes, probe_id: str, run: int) -> ProbeRun:
        return await self._run(task, probe_id, f"{probe_id}-{task.digest[7:19]}-oracle-{run}", solution_tar)

    async def nop(self, task: Task, probe_id: str) -> ProbeRun:
        return await self._run(task, probe_id, f"{probe_id}-{task.digest[7:19]}-nop", None)

    async def _run(self, task: Task, probe_id: str, attempt_id: str, solution_tar: bytes | None) -> ProbeRun:
        try:
            async with self._sandbox(task, probe_id, attempt_id) as claim:
                detail = ""
                if solution_tar is not None:
                    detail = await self._solve(task, claim, solution_tar)
                return await self._verify(task, claim, probe_id, attempt_id, detail)
        except _Broken as broken:
            seen = {"failure": broken.failure, "detail": broken.detail}
            log.warning("probe run failed", task=task.digest, attempt=attempt_id, **seen)
            return ProbeRun(None, broken.failure, broken.image_digest, broken.detail)

    @contextlib.asynccontextmanager
    async def _sandbox(
        self, task: Task, probe_id: str, attempt_id: str
    ) -> AsyncIterator[sandbox_pb2.ClaimSandboxResponse]:
        limits = task.content.limits
        request = sandbox_pb2.ClaimSandboxRequest(
            task_digest=task.digest,
            run_id=probe_id,
            attempt_id=attempt_id,
            ttl_s=limits.agent_timeout_s + limits.verifier_timeout_s + 2 * _VERIFIER_GRACE_S,
            idempotency_key=attempt_id,
        )
        claiming = asyncio.ensure_future(self._claim(request))
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # Cancelled while the scheduler may be granting: wait for its answer, or the sandbox would be left behind.
            with contextlib.suppress(_Broken):
                await self._delete((await claiming).sandbox.sandbox_id)
            raise
        try:
            yield claim
        finally:
            await asyncio.shield(self._delete(claim.sandbox.sandbox_id))

    async def _claim(self, request: sandbox_pb2.ClaimSandboxRequest) -> sandbox_pb2.ClaimSandboxResponse:
        try:
            claim = await when_there_is_room(
                lambda left_s: self._scheduler.ClaimSandbox(request, timeout=left_s), within_s=self._claim_timeout_s
            )
        except QuotaExceeded as error:
            raise _Broken("quota", error.message) from error
        except LongshoreError as error:
            reason = error.details.get("end_reason", "")
            raise _Broken("image_pull" if reason == "image_pull" else "sandbox_start", error.message) from error
        sandbox: sandbox_pb2.Sandbox = claim.sandbox
        if sandbox.state == sandbox_pb2.SANDBOX_STATE_ENDED:
            pulled = sandbox.end_reason == sandbox_pb2.END_REASON_IMAGE_PULL
            await self._delete(sandbox.sandbox_id)
            raise _Broken("image_pull" if pulled else "sandbox_start", sandbox.end_detail, sandbox.image_digest)
        await self._agents.trim()
        answer: sandbox_pb2.ClaimSandboxResponse = claim
        return answer

    async def _delete(self, sandbox_id: str) -> None:
        request = sandbox_pb2.DeleteSandboxRequest(sandbox_id=sandbox_id)
        try:
            await self._scheduler.DeleteSandbox(request, timeout=_DELETE_TIMEOUT_S)
        except LongshoreError as error:
            # It expires by its ttl; the probe's result stands.
            log.warning("sandbox not deleted", sandbox=sandbox_id, error=error.message)

    async def _solve(self, task: Task, claim: sandbox_pb2.ClaimSandboxResponse, solution_tar: bytes) -> str:
        """Runs the solution as root; what is worth knowing of how it ended."""
        agent = self._agents.client(claim.agent_address, claim.agent_token)
        image = claim.sandbox.image_digest
        try:
            await agent.upload(SOLUTION_FOLDER, solution_tar, tar=True, replace=True)
            ended = await agent.exec(
                _SOLVE,
                timeout_s=task.content.limits.agent_timeout_s,
                env=task.content.solution_env,
                output_cap=_OUTPUT_CAP_BYTES,
            )
        except LongshoreError as error:
            raise _Broken("sandbox_lost", error.message, image) from error
        if ended.oom_killed:
            raise _Broken("sandbox_oom", "the solution was killed for its memory", image)
        return _describe(ended, task.content.limits.agent_timeout_s)

    async def _verify(
        self, task: Task, claim: sandbox_pb2.ClaimSandboxResponse, probe_id: str, attempt_id: str, detail: str
    ) -> ProbeRun:
        image = claim.sandbox.image_digest
        request = verifier_pb2.VerifyRequest(
            task_digest=task.digest,
            sandbox_id=claim.sandbox.sandbox_id,
            agent_address=claim.agent_address,
            agent_token=claim.agent_token,
            run_id=probe_id,
            attempt_id=attempt_id,
            regrade=False,
        )
        timeout = task.content.limits.verifier_timeout_s + _VERIFIER_GRACE_S
        try:
            answer = await self._verifier.Verify(request, timeout=timeout)
        except LongshoreError as error:
            raise _Broken("verifier_setup", error.message, image) from error
        if answer.WhichOneof("result") == "failed":
            raise _Broken(failure_name(answer.failed.failure), _join(answer.failed.evidence, detail), image)
        if answer.WhichOneof("result") != "reward":
            raise _Broken("verifier_setup", "the verifier answered neither a reward nor a failure", image)
        reward = answer.reward.reward
        return ProbeRun(reward, "", image, "" if reward == 1.0 else detail)


def failure_name(failure: outcome_pb2.Failure.ValueType) -> str:
    """The contracts' name of a failure."""
    return outcome_pb2.Failure.Name(failure).removeprefix("FAILURE_").lower()


def _describe(ended: ExecResult, timeout_s: float) -> str:
    if ended.timed_out:
        return f"solve.sh was cut off after {timeout_s:g} s"
    if ended.status == 0:
        return ""
    output = (ended.stderr.joined() or ended.stdout.joined()).decode("utf-8", "replace").strip()
    return f"solve.sh ended with status {ended.status}: {output[-_DETAIL_CHARS:]}"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


class UnconfiguredProbeRunner:
    """Used where no scheduler or verifier address is set: everything but probes works."""

    async def oracle(self, task: Task, solution_tar: bytes, probe_id: str, run: int) -> ProbeRun:
        raise Unavailable(
            "this catalog cannot probe: set LONGSHORE_TASK_CATALOG_SCHEDULER_ADDRESS and ..._VERIFIER_ADDRESS",
            retryable=False,
        )

    async def nop(self, task: Task, probe_id: str) -> ProbeRun:
        return await self.oracle(task, b"", probe_id, 0)
