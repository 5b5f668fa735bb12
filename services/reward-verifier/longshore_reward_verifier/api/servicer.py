"""longshore.verifier.v1 over gRPC."""

import asyncio
from typing import Any

from longshore.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec
from longshore_reward_verifier.api import mapping, metrics
from longshore_reward_verifier.domain.outcome import GradeFailed, Verdict
from longshore_reward_verifier.domain.ports import Sandbox
from longshore_reward_verifier.domain.verification import Verifier, VerifyRequest

_REQUIRED = ("task_digest", "sandbox_id", "agent_address", "agent_token")


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Maps Verify; at most max_concurrent run at once, the others wait."""

    def __init__(self, verifier: Verifier, agents: AgentChannels, clock: Clock, max_concurrent: int) -> None:
        self._verifier, self._agents, self._clock = verifier, agents, clock
        self._slots = asyncio.Semaphore(max_concurrent)

    async def Verify(self, request: verifier_pb2.VerifyRequest, context: Any) -> verifier_pb2.VerifyResponse:
        """Raises InvalidSpec when the request names no task or no sandbox; everything else is in the answer."""
        for name in _REQUIRED:
            if not getattr(request, name):
                raise InvalidSpec(f"Verify needs {name}", field=name)
        with metrics.IN_FLIGHT.track_inprogress():
            async with self._slots:
                started = self._clock.monotonic()
                verdict = await self._verify(request)
                seconds = self._clock.monotonic() - started
        await self._agents.trim()
        _count(verdict, seconds)
        return mapping.response(verdict, seconds)

    async def _verify(self, request: verifier_pb2.VerifyRequest) -> Verdict:
        agent = self._agents.client(request.agent_address, request.agent_token)
        wanted = VerifyRequest(request.task_digest, request.run_id, request.attempt_id, request.regrade)
        return await self._verifier.verify(wanted, Sandbox(request.sandbox_id, "", agent))


def _count(verdict: Verdict, seconds: float) -> None:
    metrics.SECONDS.observe(seconds)
    if verdict.first_failure is not None:
        metrics.REGRADES.labels(verdict.first_failure.failure.value).inc()
    if verdict.agent_broke_verifier:
        label = "agent_broke_verifier"
    else:
        label = verdict.result.failure.value if isinstance(verdict.result, GradeFailed) else "scored"
    metrics.VERDICTS.labels(label).inc()
