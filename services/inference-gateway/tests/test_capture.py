"""Budgets, trainability and completeness of a turn."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import InvalidSpec, QuotaExceeded
from longshore_inference_gateway.domain import capture
from longshore_inference_gateway.domain.models import FinishReason, Generated, Sampling, VersionSpan


@given(
    forced=st.integers(0, 100),
    prompt=st.integers(1, 200),
    context=st.integers(1, 200),
    rest=st.integers(0, 100) | st.none(),
)
def test_no_budget_is_ever_exceeded(forced: int, prompt: int, context: int, rest: int | None) -> None:
    try:
        tokens = capture.call_sampling(Sampling(1.0, max_tokens=forced), 0, prompt, context, rest).max_tokens
    except QuotaExceeded:
        assert rest == 0
        return
    except InvalidSpec:
        assert prompt >= context
        return
    assert tokens >= 1
    assert prompt + tokens <= context
    assert forced == 0 or tokens <= forced
    assert rest is None or tokens <= rest


def test_each_call_draws_from_its_own_seed() -> None:
    seeds = [capture.call_sampling(Sampling(1.0, seed=7), n, 1, 10, None).seed for n in range(3)]
    assert len(set(seeds)) == 3
    assert seeds == [capture.call_sampling(Sampling(1.0, seed=7), n, 1, 10, None).seed for n in range(3)]
    assert capture.call_sampling(Sampling(1.0), 0, 1, 10, None).seed is None


@pytest.mark.parametrize(
    ("sampling", "trainable"),
    [
        (Sampling(1.0), True),
        (Sampling(0.5), True),
        (Sampling(0.0), False),
        (Sampling(1.0, top_p=0.9), False),
        (Sampling(1.0, top_k=5), False),
    ],
)
def test_only_plain_sampling_is_trainable(sampling: Sampling, trainable: bool) -> None:
    assert (capture.untrainable_by_sampling(sampling) == "") is trainable


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Generated("m", [1, 2], [-0.1, -0.2]), ""),
        (Generated("m", [], []), "no token ids"),
        (Generated("m", [1, 2], [-0.1]), "2 token ids but 1 logprobs"),
        (Generated("m", [1], [math.nan]), "not finite"),
        (Generated("other", [1], [-0.1]), "the engine served other"),
        (Generated("m", [1], [-0.1], prompt_tokens=4), "saw 4 prompt tokens, 3 were sent"),
    ],
)
def test_rllm_816_what_is_not_token_exact_is_said_and_not_padded(answer: Generated, fault: str) -> None:
    """rLLM #816: a fallback encode desynchronised logprobs, and zeros filled the gap."""
    found = capture.capture_fault(answer, "m", 3)
    assert fault in found
    assert bool(found) is bool(fault)


def test_rllm_622_tokens_keep_the_version_that_sampled_them() -> None:
    """rLLM #622: an update in the middle of a generation mislabelled its first tokens."""
    answer = Generated(spans=[(0, "default"), (3, "7"), (5, "7")])
    assert capture.spans_of(answer, 1) == [VersionSpan(0, 1), VersionSpan(3, 7)]
    assert capture.spans_of(Generated(), 4) == [VersionSpan(0, 4)]
    with pytest.raises(ValueError, match="step-3"):
        capture.spans_of(Generated(spans=[(0, "step-3")]), 1)


def test_finish_reasons() -> None:
    assert capture.finish_of("stop", True) is FinishReason.TOOL_CALLS
    assert capture.finish_of("length", True) is FinishReason.LENGTH
    assert capture.finish_of("repetition", False) is FinishReason.ERROR
