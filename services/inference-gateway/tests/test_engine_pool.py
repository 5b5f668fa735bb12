"""Admission: bounded, first come first served, and measured."""

import asyncio

import pytest

from longshore_common.clock import FakeClock, SystemClock
from longshore_common.errors import QuotaExceeded, Unavailable
from longshore_inference_gateway.domain.engine_pool import EnginePool, EngineSlot
from longshore_inference_gateway.domain.models import EngineState


class Handle:
    """As much of an engine as the pool looks at."""

    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id


def _pool(engines: int = 1, per_engine: int = 1, queue: int = 2, clock: FakeClock | None = None) -> EnginePool:
    pool = EnginePool(clock or SystemClock(), per_engine=per_engine, queue_limit=queue)
    pool.slots = [EngineSlot(n, Handle(f"e{n}"), EngineState.READY) for n in range(engines)]  # type: ignore[arg-type]
    return pool


async def test_the_warm_engine_is_preferred_while_it_has_room() -> None:
    pool = _pool(engines=2, per_engine=2)
    chosen = [(await pool.acquire("e1", 1)).slot.engine_id for _ in range(4)]
    assert chosen == ["e1", "e1", "e0", "e0"]


async def test_an_engine_that_lost_a_call_is_left_alone_for_seconds_unless_it_is_the_only_one() -> None:
    clock = FakeClock()
    pool = _pool(engines=2, per_engine=4, clock=clock)
    pool.doubt(lost := await pool.acquire("e1", 1))
    pool.release(lost)
    assert [(await pool.acquire("e1", 1)).slot.engine_id for _ in range(2)] == ["e0", "e0"]
    pool.doubt(await pool.acquire("e0", 1))
    assert (await pool.acquire("e1", 1)).slot.engine_id == "e1", "doubted or not, calls go somewhere"
    clock.advance(6)
    assert (await pool.acquire("e0", 1)).slot.engine_id == "e0"


async def test_waiting_is_measured_and_in_order() -> None:
    clock = FakeClock()
    pool = _pool(clock=clock)
    first = await pool.acquire("", 5)
    order: list[int] = []

    async def wait(number: int) -> float:
        admission = await pool.acquire("", 5)
        order.append(number)
        pool.release(admission)
        return admission.queued_s

    waiting = [asyncio.create_task(wait(number)) for number in range(2)]
    await asyncio.sleep(0)
    clock.advance(3)
    pool.release(first)
    assert await asyncio.gather(*waiting) == [3, 3]
    assert order == [0, 1]
    assert pool.in_flight == 0


async def test_a_full_queue_and_a_long_wait_are_refused() -> None:
    pool = _pool(queue=1)
    await pool.acquire("", 1)
    waiting = asyncio.create_task(pool.acquire("", 0.05))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceeded) as full:
        await pool.acquire("", 1)
    assert full.value.details["reason"] == "queue_full"
    with pytest.raises(QuotaExceeded, match="no engine had room"):
        await waiting
    assert (pool.waiting, pool.in_flight) == (0, 1)


async def test_room_granted_to_a_cancelled_waiter_is_passed_on() -> None:
    pool = _pool()
    held = await pool.acquire("", 1)
    first, second = (asyncio.create_task(pool.acquire("", 1)) for _ in range(2))
    await asyncio.sleep(0)
    pool.release(held)
    first.cancel()
    admission = await asyncio.wait_for(second, 1)
    pool.release(admission)
    assert pool.in_flight == 0


async def test_waiters_are_told_when_the_last_engine_goes() -> None:
    pool = _pool()
    await pool.acquire("", 1)
    waiting = asyncio.create_task(pool.acquire("", 5))
    await asyncio.sleep(0)
    pool.slots[0].state, pool.slots[0].detail = EngineState.STARTING, "restarting after: exit status -9"
    pool.wake()
    with pytest.raises(Unavailable, match="exit status -9"):
        await waiting
    with pytest.raises(Unavailable):
        await pool.acquire("", 5)
