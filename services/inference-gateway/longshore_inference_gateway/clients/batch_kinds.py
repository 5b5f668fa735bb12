"""Keeps calls of the base model and calls of adapters out of one engine batch.

vLLM's LoRA kernels on the CPU apply an adapter to rows that ask for none: with index -1 they read the last adapter's
weights. Seen here as version 0 solving 12% instead of 33% while another version was evaluated beside it, with logprobs
off by 1.6; found by the capture check. Calls of one kind run together; the kinds take turns, first come first served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class BatchKinds:
    """Admits any number of calls of one kind at a time."""

    def __init__(self) -> None:
        self._kind: bool | None = None
        self._running = 0
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def of(self, kind: bool) -> AsyncIterator[None]:
        """Waits until calls of this kind may run, then holds that for the length of the block."""
        await self._enter(kind)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, kind: bool) -> None:
        if not self._waiting and (self._running == 0 or kind is self._kind):
            self._kind = kind
            self._running += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave()
            else:
                self._waiting.remove((kind, admitted))
                self._admit()
            raise

    def _leave(self) -> None:
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        if self._running or not self._waiting:
            return
        self._kind = self._waiting[0][0]
        same = [entry for entry in self._waiting if entry[0] is self._kind]
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not self._kind)
        for _, admitted in same:
            if not admitted.done():
                self._running += 1
                admitted.set_result(None)
