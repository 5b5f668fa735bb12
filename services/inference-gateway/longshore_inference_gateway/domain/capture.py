"""The rules of capture: how much may be sampled, whether a turn is complete, whether it may be trained on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from longshore_common.errors import InvalidSpec, QuotaExceeded
from longshore_inference_gateway.domain.models import (
    FinishReason,
    Generated,
    Reason,
    Sampling,
    TurnStatus,
    VersionSpan,
)

# vLLM's label of weights that were never updated in place: they are those of the served name.
UNCHANGED_WEIGHTS = "default"


def call_sampling(
    forced: Sampling, call_index: int, prompt_tokens: int, context: int, session_rest: int | None
) -> Sampling:
    """The sampling of one call: the session's, with as many tokens as are left, and a seed of its own.

    Args:
        call_index: how many calls the trace had before; equal seeds on every turn would correlate the draws.
        session_rest: tokens that the session may still sample; None: no limit.

    Raises:
        InvalidSpec: details["reason"] = context_length_exceeded.
        QuotaExceeded: details["reason"] = session_token_limit.
    """
    if session_rest is not None and session_rest <= 0:
        raise QuotaExceeded(
            "the session has sampled all the tokens that it may; end the attempt",
            which="session_tokens",
            details={"reason": Reason.SESSION_TOKEN_LIMIT},
        )
    rest = context - prompt_tokens
    if rest <= 0:
        raise InvalidSpec(
            f"this model's maximum context length is {context} tokens; the messages have {prompt_tokens}: shorten them",
            field="messages",
            details={"reason": Reason.CONTEXT_LENGTH_EXCEEDED},
        )
    limits = [rest, forced.max_tokens or rest, rest if session_rest is None else session_rest]
    return replace(forced, max_tokens=min(limits), seed=_call_seed(forced.seed, call_index))


def _call_seed(seed: int | None, call_index: int) -> int | None:
    if seed is None:
        return None
    mixed = hashlib.sha256(f"{seed}/{call_index}".encode()).digest()
    return int.from_bytes(mixed[:8], "big") >> 1


def untrainable_by_sampling(sampling: Sampling) -> str:
    """Why tokens drawn this way may not be trained on; empty: they may. Only the temperature is free."""
    if sampling.temperature <= 0:
        return "temperature 0: greedy tokens were not drawn from the policy"
    if sampling.top_p != 1.0:
        return f"top_p is {sampling.top_p}"
    if sampling.top_k > 0:
        return f"top_k is {sampling.top_k}"
    return ""


def capture_fault(answer: Generated, served_name: str, prompt_tokens: int) -> str:
    """Why an engine's answer is not token-exact; empty: it is."""
    if not answer.token_ids:
        return "the engine returned no token ids"
    if len(answer.token_ids) != len(answer.logprobs):
        return f"{len(answer.token_ids)} token ids but {len(answer.logprobs)} logprobs"
    if not all(math.isfinite(value) for value in answer.logprobs):
        return "a logprob is not finite"
    if answer.model and answer.model != served_name:
        return f"the engine served {answer.model}, not {served_name}"
    if answer.prompt_tokens is not None and answer.prompt_tokens != prompt_tokens:
        return f"the engine saw {answer.prompt_tokens} prompt tokens, {prompt_tokens} were sent"
    return ""


def spans_of(answer: Generated, version: int) -> list[VersionSpan]:
    """Which version sampled which tokens.

    Raises:
        ValueError: the engine labels weights with something that is no version.
    """
    spans: list[VersionSpan] = []
    for first, label in answer.spans or [(0, UNCHANGED_WEIGHTS)]:
        number = version if label == UNCHANGED_WEIGHTS else int(label)
        if not spans or spans[-1].version != number:
            spans.append(VersionSpan(first, number))
    return spans


def status_of(fault: str) -> TurnStatus:
    """OK or CAPTURE_INCOMPLETE."""
    return TurnStatus.CAPTURE_INCOMPLETE if fault else TurnStatus.OK


def finish_of(engine_reason: str, has_tool_calls: bool) -> FinishReason:
    """The finish reason that the client sees."""
    if engine_reason == FinishReason.STOP and has_tool_calls:
        return FinishReason.TOOL_CALLS
    try:
        return FinishReason(engine_reason)
    except ValueError:
        return FinishReason.ERROR
