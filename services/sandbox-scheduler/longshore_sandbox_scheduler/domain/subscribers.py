"""Who watches sandbox state changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.domain.model import Sandbox

_BACKLOG = 10_000


@dataclass(eq=False)
class _Subscriber:
    run_id: str
    queue: asyncio.Queue[Sandbox] = field(default_factory=lambda: asyncio.Queue(_BACKLOG))
    lost: bool = False


class Subscribers:
    """Hands every change to those who watch its run."""

    def __init__(self) -> None:
        self._subscribers: list[_Subscriber] = []

    async def watch(self, run_id: str) -> AsyncIterator[Sandbox]:
        """Changes from now on; run_id empty: of all runs. Raises Unavailable when the reader is too slow."""
        subscriber = _Subscriber(run_id)
        self._subscribers.append(subscriber)
        try:
            while True:
                yield await subscriber.queue.get()
                if subscriber.lost:
                    raise Unavailable("the watcher fell behind; list the sandboxes and watch again")
        finally:
            self._subscribers.remove(subscriber)

    def publish(self, sandbox: Sandbox) -> None:
        """Never blocks; a reader whose backlog is full is told so."""
        for subscriber in self._subscribers:
            if subscriber.run_id in ("", sandbox.run_id):
                try:
                    subscriber.queue.put_nowait(sandbox)
                except asyncio.QueueFull:
                    subscriber.lost = True
