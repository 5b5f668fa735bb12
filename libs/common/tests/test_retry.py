"""Retries end, and a refusal that names its time is waited out."""

from __future__ import annotations

import pytest

from longshore_common.errors import QuotaExceeded, Unavailable
from longshore_common.retry import retry, when_there_is_room


class Calls:
    """Fails with what it is given, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.left: list[float] = []

    async def __call__(self, left_s: float = 0.0) -> str:
        self.left.append(left_s)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def full(retry_after_s: str | None) -> QuotaExceeded:
    details = {"retry_after_s": retry_after_s} if retry_after_s is not None else {}
    return QuotaExceeded("full", which="sandboxes", details=details)


async def test_passing_faults_are_retried_and_the_last_one_is_raised() -> None:
    calls = Calls(Unavailable("a"), Unavailable("b"))
    assert await retry(calls, attempts=3, base_s=0.001) == "done"
    with pytest.raises(Unavailable, match="b"):
        await retry(Calls(Unavailable("a"), Unavailable("b")), attempts=2, base_s=0.001)
    with pytest.raises(Unavailable, match="for good"):
        await retry(Calls(Unavailable("for good", retryable=False)), attempts=9)


async def test_comes_again_when_told() -> None:
    calls = Calls(full("0.01"), full("0.01"))
    assert await when_there_is_room(calls, within_s=5) == "done"
    assert calls.left[0] == pytest.approx(5, abs=0.1)
    assert calls.left[2] < calls.left[1] < calls.left[0]


@pytest.mark.parametrize("error", [full(None), full("60")])
async def test_does_not_wait_for_what_comes_too_late_or_never(error: QuotaExceeded) -> None:
    calls = Calls(error)
    with pytest.raises(QuotaExceeded):
        await when_there_is_room(calls, within_s=1)
    assert len(calls.left) == 1
