"""Calls of the policy for one attempt: sends, waits, sends again, and says in the attempt's words what went wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore_common.clock import Clock
from longshore_rollout_worker.domain.conversation import ModelReply
from longshore_rollout_worker.domain.model_fault import EndAttempt, Fenced, SendAgain, model_fault
from longshore_rollout_worker.domain.ports import ModelAnswer, ModelTransport, Session
from longshore_rollout_worker.domain.vocabulary import AttemptFailure, Failure, LeaseLost, Termination

_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 15.0


@dataclass(frozen=True)
class LimitReached:
    """The gateway refused one more turn: the agent's state is graded with this termination."""

    termination: Termination


class Model:
    """The policy behind one session. patience_s: how long passing faults of one call are waited out, seconds."""

    def __init__(self, transport: ModelTransport, session: Session, clock: Clock, patience_s: float) -> None:
        self._transport, self._session, self._clock, self._patience_s = transport, session, clock, patience_s

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> ModelReply | LimitReached:
        """One sampled message. Waiting for a free queue or a returning engine counts as queued.

        Raises AttemptFailure (gateway, engine, harness_setup) and LeaseLost (the session was fenced).
        """
        request: dict[str, Any] = {"model": self._session.model, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        waited_s, wait_s, resend = 0.0, _FIRST_WAIT_S, 0
        while True:
            started = self._clock.monotonic()
            answer = await self._transport.send(self._session, request, resend)
            if answer.status == 200:
                return _reply(answer, waited_s)
            fault = _fault(answer)
            if isinstance(fault, EndAttempt):
                return LimitReached(fault.termination)
            if isinstance(fault, Fenced):
                raise LeaseLost(_message(answer))
            if not isinstance(fault, SendAgain) or waited_s >= self._patience_s:
                raise AttemptFailure(fault.failure, f"model call {answer.status}: {_message(answer)}")
            await self._clock.sleep(_within(answer.retry_after_s or wait_s))
            waited_s += self._clock.monotonic() - started
            wait_s, resend = wait_s * 2, resend + 1


def _within(wait_s: float) -> float:
    return min(max(wait_s, _FIRST_WAIT_S), _LONGEST_WAIT_S)


def _fault(answer: ModelAnswer) -> Any:
    error = answer.body.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    return model_fault(answer.status, str(code or ""))


def _message(answer: ModelAnswer) -> str:
    error = answer.body.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or answer.body)[:500]


def _reply(answer: ModelAnswer, waited_s: float) -> ModelReply:
    try:
        choice = answer.body["choices"][0]
        message = choice["message"]
        tokens = int(answer.body["usage"]["completion_tokens"])
        finish = str(choice.get("finish_reason") or "")
        if not isinstance(message, Mapping):
            raise TypeError("message is no object")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        text = f"the gateway's answer is no chat completion ({error!r}): {str(answer.body)[:300]}"
        raise AttemptFailure(Failure.GATEWAY, text) from error
    return ModelReply(message, finish, tokens, waited_s + answer.queued_ms / 1000)
