"""Tickets: a notification wakes, a timeout does not, and a cancellation is never lost."""

from __future__ import annotations

import asyncio

import pytest

from longshore_controller.signals import Signal, wait_for


async def test_notified() -> None:
    signal = Signal()
    waiting = asyncio.create_task(wait_for(signal.ticket(), 60))
    await asyncio.sleep(0)
    signal.notify()
    assert await waiting is True


async def test_timed_out() -> None:
    assert await wait_for(Signal().ticket(), 0.01) is False


async def test_cancellation_with_the_notification_is_not_lost() -> None:
    """asyncio.wait_for before Python 3.12 lost it (CPython gh-86296): a manager served on after its shutdown."""
    signal = Signal()

    async def serve() -> None:
        while True:
            await wait_for(signal.ticket(), 0.05)

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0.01)
    signal.notify()
    await asyncio.sleep(0)
    serving.cancel()
    done, _ = await asyncio.wait([serving], timeout=5)
    assert serving in done
    with pytest.raises(asyncio.CancelledError):
        serving.result()
