"""Places are given in order, never twice, never lost."""

from __future__ import annotations

import asyncio

import pytest

from longshore_common.errors import QuotaExceeded
from longshore_sandbox_scheduler.domain.admission import Admission


async def test_waits_in_order() -> None:
    admission, order = Admission(1), []
    await admission.acquire(1)

    async def wait(name: int) -> None:
        await admission.acquire(5)
        order.append(name)
        admission.release()

    tasks = []
    for name in range(5):
        tasks.append(asyncio.create_task(wait(name)))
        await asyncio.sleep(0)
    admission.release()
    await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_gives_up_in_time_and_says_why() -> None:
    admission = Admission(1)
    await admission.acquire(1)
    with pytest.raises(QuotaExceeded, match="all 1 sandboxes") as caught:
        await admission.acquire(0.02)
    assert caught.value.which == "sandboxes"
    assert admission.waiting == 0
    admission.release()
    await admission.acquire(0.02)


async def test_a_cancelled_waiter_does_not_lose_the_place() -> None:
    admission = Admission(1)
    await admission.acquire(1)
    waiter = asyncio.create_task(admission.acquire(5))
    await asyncio.sleep(0)
    admission.release()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    if waiter.cancelled():
        await admission.acquire(0.02)
