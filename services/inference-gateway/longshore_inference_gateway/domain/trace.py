"""The trace of one (attempt, lease epoch): turn numbers, lineage, and calls that a resent request may join."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from longshore_common.errors import LongshoreError
from longshore_inference_gateway.domain.lineage import Lineage
from longshore_inference_gateway.domain.ports import Codec

_KEPT_CALLS = 32


@dataclass(slots=True, eq=False)
class Call:
    """One model call, which goes on when its client is cut off. queued_ms is known once it is admitted."""

    session_id: str
    stream: bool
    queued_ms: int = 0
    events: list[bytes] = field(default_factory=list)
    """SSE events so far (streaming)."""
    body: bytes = b""
    """The whole answer (not streaming)."""
    error: LongshoreError | None = None
    done: bool = False
    delivered: bool = False
    task: asyncio.Task[None] | None = None
    resume: Callable[[], Awaitable[None]] | None = None
    """Set when the answer was sampled but not stored: stores it and ends the call, without sampling again."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, event: bytes) -> None:
        """Adds an SSE event."""
        self.events.append(event)
        self._wake()

    def finish(self, error: LongshoreError | None = None) -> None:
        """Ends the call."""
        self.error = error
        self.done = True
        self._wake()

    def reopen(self) -> None:
        """Makes it a running call again, for `resume`."""
        self.error, self.done = None, False

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def started(self) -> None:
        """Returns at the first event or the end."""
        while not self.events and not self.done:
            await self._changed.wait()

    async def finished(self) -> None:
        """Returns at the end."""
        while not self.done:
            await self._changed.wait()

    async def follow(self) -> AsyncIterator[bytes]:
        """All events from the first on, also for a client that comes late."""
        position = 0
        while True:
            changed = self._changed
            while position < len(self.events):
                yield self.events[position]
                position += 1
            if self.done:
                return
            await changed.wait()


class Trace:
    """Shared by all sessions of one (attempt, lease epoch).

    recovered: whether the turns captured so far are known; after a restart they are read back first.
    """

    def __init__(self, codec: Codec, *, recovered: bool) -> None:
        self.codec = codec
        self.lineage = Lineage(codec)
        self.recovered = recovered
        self.recovering = asyncio.Lock()
        self.next_turn = 0
        self.calls_started = 0
        self.sampled_tokens = 0
        self.reserved_tokens = 0
        """Tokens that calls in flight may still sample."""
        self.unsaved: set[int] = set()
        """Turns that were sampled and could not be stored."""
        self._calls: dict[bytes, Call] = {}

    def take_turn(self) -> int:
        """The next turn number: 0, 1, ... in order of capture."""
        number = self.next_turn
        self.next_turn += 1
        return number

    def joinable(self, key: bytes, marked_retry: bool) -> Call | None:
        """The call that an identical request joins: in flight, undelivered, or any when the client says it retries."""
        call = self._calls.get(key)
        if call is None or (call.error is not None and call.resume is None):
            return None
        return call if marked_retry or not call.done or not call.delivered else None

    def add_call(self, key: bytes, call: Call) -> None:
        """Makes a call joinable; the oldest delivered ones are forgotten."""
        self._calls.pop(key, None)
        self._calls[key] = call
        if len(self._calls) > _KEPT_CALLS:
            old = next((k for k, c in self._calls.items() if c.done and c.delivered), None)
            if old is not None:
                del self._calls[old]

    async def cancel_calls(self, session_id: str) -> None:
        """Cuts off the running calls of a session and waits until they are captured."""
        tasks = [c.task for c in self._calls.values() if c.session_id == session_id and c.task is not None]
        for task in tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
