"""Places are given in order, never twice, never lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


async def _order_of(admission: Admission, waiters: list[tuple[str, int]]) -> list[str]:
    """Lets claims of (run, priority) wait, then frees one place after the other."""
    order: list[str] = []

    async def wait(run_id: str, priority: int) -> None:
        await admission.acquire(5, run_id, priority)
        order.append(run_id)

    tasks = []
    for run_id, priority in waiters:
        tasks.append(asyncio.create_task(wait(run_id, priority)))
        await asyncio.sleep(0)
    for _ in waiters:
        admission.release("held")
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return order


async def _full(places: int) -> Admission:
    admission = Admission(places)
    for _ in range(places):
        await admission.acquire(1, "held")
    return admission


async def test_the_run_with_the_fewest_goes_first() -> None:
    admission = await _full(4)
    assert await _order_of(admission, [("a", 0), ("a", 0), ("a", 0), ("b", 0)]) == ["a", "b", "a", "a"]


async def test_priority_goes_before_fairness() -> None:
    admission = await _full(3)
    assert await _order_of(admission, [("a", 0), ("b", 0), ("b", 7)]) == ["b", "a", "b"]


async def test_a_full_queue_refuses_at_once_with_the_time_to_come_again() -> None:
    admission = Admission(1, max_waiting=1)
    await admission.acquire(1)
    waiting = asyncio.create_task(admission.acquire(5))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceeded, match="max_waiting") as caught:
        await admission.acquire(5)
    assert 1 <= int(caught.value.details["retry_after_s"]) <= 60
    admission.release()
    await waiting


@settings(max_examples=80, deadline=None)
@given(
    places=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(["take", "free", "give up"]), st.sampled_from("abc"), st.integers(0, 2))),
)
async def test_places_are_never_given_twice_or_lost(places: int, steps: list[tuple[str, str, int]]) -> None:
    admission = Admission(places)
    held: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def claim(run_id: str, priority: int) -> None:
        await admission.acquire(5, run_id, priority)
        held.append(run_id)
        assert len(held) <= places

    for what, run_id, priority in steps:
        if what == "take":
            tasks.append(asyncio.create_task(claim(run_id, priority)))
        elif what == "free" and held:
            admission.release(held.pop())
        elif what == "give up" and tasks:
            tasks[-1].cancel()
        await asyncio.sleep(0)
        assert admission.free == places - len(held) or admission.free == 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    while held:
        admission.release(held.pop())
    assert (admission.free, admission.waiting) == (places, 0)
