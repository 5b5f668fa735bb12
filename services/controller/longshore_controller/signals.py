"""Wakes waiters of one process. The database is the truth; this only saves polling."""

from __future__ import annotations

import asyncio


class Signal:
    """Take a ticket, look at the database, then wait on the ticket: nothing that happens in between is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """Set at the next notify."""
        return self._event

    def notify(self) -> None:
        """Wakes everyone who holds a ticket."""
        self._event.set()
        self._event = asyncio.Event()


async def wait_for(ticket: asyncio.Event, timeout_s: float) -> bool:
    """Whether the ticket was called within timeout_s."""
    try:
        async with asyncio.timeout(timeout_s):
            await ticket.wait()
    except TimeoutError:
        return False
    return True
