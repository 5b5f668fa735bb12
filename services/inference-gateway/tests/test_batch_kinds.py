"""Base and adapter calls never run in one batch, and neither kind starves."""

import asyncio
import random

import pytest

from longshore_inference_gateway.clients.batch_kinds import BatchKinds


async def test_kinds_never_overlap_and_all_finish():
    gate, running, seen, most = BatchKinds(), [0, 0], [0, 0], 0
    rng = random.Random(3)

    async def call(kind: bool) -> None:
        nonlocal most
        await asyncio.sleep(rng.random() / 50)
        async with gate.of(kind):
            running[kind] += 1
            most = max(most, *running)
            assert not (running[0] and running[1])
            await asyncio.sleep(rng.random() / 100)
            running[kind] -= 1
            seen[kind] += 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(call(bool(index % 2)) for index in range(200)))
    assert seen == [100, 100]
    assert most > 1, "calls of one kind run together"


async def test_a_waiting_kind_is_served_before_later_calls_of_the_running_kind():
    gate, order = BatchKinds(), []

    async def call(kind: bool, name: str) -> None:
        async with gate.of(kind):
            order.append(name)

    async with gate.of(True):
        other = asyncio.create_task(call(False, "other"))
        await asyncio.sleep(0)
        later = asyncio.create_task(call(True, "later"))
        await asyncio.sleep(0)
    await asyncio.gather(other, later)
    assert order == ["other", "later"]


async def test_a_cancelled_wait_holds_nothing_up():
    gate = BatchKinds()
    async with gate.of(True):
        waiting = asyncio.create_task(gate.of(False).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(5), gate.of(True):
            pass
    async with asyncio.timeout(5), gate.of(False):
        pass
