"""Bounded retries of calls that failed for a passing reason."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from longshore_common.errors import LongshoreError

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
