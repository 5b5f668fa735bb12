"""The trajectory store over gRPC: durable append of turns, and reading them back."""

from __future__ import annotations

import grpc.aio

from longshore.common.v1 import outcome_pb2
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc
from longshore_common.errors import NotFound
from longshore_common.retry import retry
from longshore_inference_gateway.domain.models import (
    FinishReason,
    ModelIdentity,
    Sampling,
    Turn,
    TurnStatus,
    VersionSpan,
)

_STATUS = {
    TurnStatus.OK: pb.TURN_STATUS_OK,
    TurnStatus.ERROR: pb.TURN_STATUS_ERROR,
    TurnStatus.CAPTURE_INCOMPLETE: pb.TURN_STATUS_CAPTURE_INCOMPLETE,
}
_STATUS_BACK = {value: key for key, value in _STATUS.items()}


class TrajectoryClient:
    """A TurnSink. Appends are keyed, so sending one again is safe."""

    def __init__(self, channel: grpc.aio.Channel, *, attempts: int, timeout_s: float) -> None:
        self._stub = trajectory_pb2_grpc.TrajectoryServiceStub(channel)
        self._attempts = attempts
        self._timeout_s = timeout_s

    async def append(self, turn: Turn) -> None:
        """Durable when it returns."""
        request = pb.AppendTurnRequest(turn=turn_to_proto(turn))

        async def once() -> None:
            await self._stub.AppendTurn(request, timeout=self._timeout_s)

        await retry(once, attempts=self._attempts)

    async def turns(self, attempt_id: str, lease_epoch: int) -> list[Turn]:
        """Captured turns of one lease epoch, in order."""
        try:
            answer = await self._stub.GetAttempt(pb.GetAttemptRequest(attempt_id=attempt_id, with_turns=True))
        except NotFound:
            return []
        found = [turn_from_proto(turn) for turn in answer.turns if turn.lease_epoch == lease_epoch]
        return sorted(found, key=lambda turn: turn.turn)


def turn_to_proto(turn: Turn) -> pb.Turn:
    """The message of a turn."""
    sampling = turn.sampling
    return pb.Turn(
        attempt_id=turn.attempt_id,
        lease_epoch=turn.lease_epoch,
        turn=turn.turn,
        parent_turn=turn.parent_turn,
        prompt_ids=turn.prompt_ids,
        completion_ids=turn.completion_ids,
        logprobs=turn.logprobs,
        versions=[pb.VersionSpan(first_token=span.first_token, version=span.version) for span in turn.versions],
        finish_reason=turn.finish_reason.value,
        sampling=outcome_pb2.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
        ),
        template_digest=turn.identity.template_digest,
        tokenizer_digest=turn.identity.tokenizer_digest,
        base_digest=turn.identity.base_digest,
        engine=turn.engine,
        dialect=turn.dialect,
        request_zst=turn.request,
        response_zst=turn.response,
        tools_zst=turn.tools,
        received_at_ms=turn.received_at_ms,
        first_token_at_ms=turn.first_token_at_ms,
        done_at_ms=turn.done_at_ms,
        status=_STATUS[turn.status],
        trainable=turn.trainable,
        untrainable_reason=turn.untrainable_reason,
        served_name=turn.served_name,
    )


def turn_from_proto(turn: pb.Turn) -> Turn:
    """The turn of a message."""
    sampling = turn.sampling
    return Turn(
        attempt_id=turn.attempt_id,
        lease_epoch=turn.lease_epoch,
        turn=turn.turn,
        parent_turn=turn.parent_turn,
        prompt_ids=list(turn.prompt_ids),
        completion_ids=list(turn.completion_ids),
        logprobs=list(turn.logprobs),
        versions=[VersionSpan(span.first_token, span.version) for span in turn.versions],
        finish_reason=FinishReason(turn.finish_reason),
        sampling=Sampling(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.max_tokens,
            sampling.seed if sampling.HasField("seed") else None,
        ),
        identity=ModelIdentity(turn.base_digest, turn.tokenizer_digest, turn.template_digest),
        engine=turn.engine,
        dialect=turn.dialect,
        request=turn.request_zst,
        response=turn.response_zst,
        tools=turn.tools_zst,
        received_at_ms=turn.received_at_ms,
        first_token_at_ms=turn.first_token_at_ms,
        done_at_ms=turn.done_at_ms,
        status=_STATUS_BACK[turn.status],
        trainable=turn.trainable,
        untrainable_reason=turn.untrainable_reason,
        served_name=turn.served_name,
    )
