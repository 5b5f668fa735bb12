"""Bounded retries of calls that failed for a passing reason."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from longshore_common.errors import LongshoreError, QuotaExceeded

T = TypeVar("T")


async def retry(fn: Callable[[], Awaitable[T]], *, attempts: int = 3, base_s: float = 0.1, max_s: float = 2.0) -> T:
    """Calls fn until it succeeds, fails for good, or `attempts` calls were made; the last error is raised.

    Waits base_s, 2 base_s, ... up to max_s seconds between calls, each with up to half of random jitter. Only errors
    with `retryable` are tried again.
    """
    for attempt in range(1, attempts + 1):
        try:
            return await fn()
        except LongshoreError as error:
            if not error.retryable or attempt == attempts:
                raise
            delay = min(max_s, base_s * 2 ** (attempt - 1))
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
    raise AssertionError("attempts must be at least 1")


async def when_there_is_room(fn: Callable[[float], Awaitable[T]], *, within_s: float) -> T:
    """Calls fn(seconds left) again whenever it was refused with the time to come again, for within_s seconds at most.

    That time is details["retry_after_s"] of QuotaExceeded; a quota without it is not one that empties by itself.

    Raises:
        QuotaExceeded: the last refusal, when the next try would come too late.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + within_s
    while True:
        try:
            return await fn(max(end - clock(), 0.001))
        except QuotaExceeded as error:
            wait_s = float(error.details.get("retry_after_s", "inf")) * random.uniform(1.0, 1.5)
            if clock() + wait_s >= end:
                raise
            await asyncio.sleep(wait_s)
