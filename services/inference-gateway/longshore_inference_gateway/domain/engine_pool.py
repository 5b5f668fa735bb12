"""Admission to engines: a bound of calls in flight per engine, a bounded first-come queue, a measure of the wait."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.errors import QuotaExceeded, Unavailable
from longshore_inference_gateway.domain.models import EngineState, Reason
from longshore_inference_gateway.domain.ports import EngineHandle

# A lost engine is noticed by its watcher; this bridges the time until then.
_DOUBT_S = 5.0


@dataclass(slots=True, eq=False)
class EngineSlot:
    """One engine of a serving set, as the pool sees it."""

    index: int
    handle: EngineHandle | None = None
    state: EngineState = EngineState.STARTING
    detail: str = ""
    in_flight: int = 0
    doubted_until: float = 0.0
    """Monotonic seconds: until then calls go to other engines, if others are ready."""

    @property
    def engine_id(self) -> str:
        """Empty while there is no engine."""
        return self.handle.engine_id if self.handle is not None else ""


@dataclass(frozen=True, slots=True)
class Admission:
    """Leave to call one engine; give it back with `EnginePool.release`. queued_s: seconds waited."""

    slot: EngineSlot
    handle: EngineHandle
    queued_s: float


@dataclass(slots=True, eq=False)
class _Waiter:
    preferred: str
    granted: asyncio.Future[EngineSlot | None]
    """The slot, its room already taken; None: no engine is ready any more."""


class EnginePool:
    """The engines of one alias."""

    def __init__(self, clock: Clock, *, per_engine: int, queue_limit: int) -> None:
        self._clock = clock
        self._per_engine = per_engine
        self._queue_limit = queue_limit
        self._waiting: deque[_Waiter] = deque()
        self.slots: list[EngineSlot] = []

    @property
    def waiting(self) -> int:
        """Calls in the queue."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Calls at engines."""
        return sum(slot.in_flight for slot in self.slots)

    async def acquire(self, preferred: str, timeout_s: float) -> Admission:
        """An engine with room: the preferred one (its prefix cache is warm), else the least loaded.

        Raises:
            Unavailable: no engine is ready (details["reason"] = engine_unavailable).
            QuotaExceeded: the queue is full or the wait took too long (details["reason"] = queue_full).
        """
        started = self._clock.monotonic()
        if not any(slot.state is EngineState.READY for slot in self.slots):
            raise self.unavailable()
        slot = self._take(preferred) if not self._waiting else None
        if slot is None:
            slot = await self._wait(preferred, timeout_s)
        if slot is None or slot.handle is None:
            raise self.unavailable()
        return Admission(slot, slot.handle, self._clock.monotonic() - started)

    def release(self, admission: Admission) -> None:
        """Gives the leave back."""
        admission.slot.in_flight -= 1
        self.wake()

    def doubt(self, admission: Admission) -> None:
        """The engine lost a call: its repetition, and others for some seconds, should meet another one."""
        admission.slot.doubted_until = self._clock.monotonic() + _DOUBT_S

    def wake(self) -> None:
        """Serves waiting calls: after a release, or when an engine's state changed."""
        ready = any(slot.state is EngineState.READY for slot in self.slots)
        while self._waiting:
            waiter = self._waiting[0]
            slot = None
            if ready and not waiter.granted.done():
                slot = self._take(waiter.preferred)
                if slot is None:
                    return
            self._waiting.popleft()
            if not waiter.granted.done():
                waiter.granted.set_result(slot)

    def unavailable(self) -> Unavailable:
        """The error that says why no engine is ready."""
        why = "; ".join(f"engine {slot.index} {slot.state}: {slot.detail}" for slot in self.slots) or "no engine"
        return Unavailable(f"no engine is ready ({why}); try again", details={"reason": Reason.ENGINE_UNAVAILABLE})

    def _take(self, preferred: str) -> EngineSlot | None:
        ready = [slot for slot in self.slots if slot.state is EngineState.READY]
        now = self._clock.monotonic()
        trusted = [slot for slot in ready if slot.doubted_until <= now] or ready
        room = [slot for slot in trusted if slot.in_flight < self._per_engine]
        if not room:
            return None
        warm = next((slot for slot in room if slot.engine_id == preferred), None)
        slot = warm or min(room, key=lambda candidate: candidate.in_flight)
        slot.in_flight += 1
        return slot

    async def _wait(self, preferred: str, timeout_s: float) -> EngineSlot | None:
        if len(self._waiting) >= self._queue_limit:
            raise self._full(f"{self._queue_limit} calls are waiting")
        waiter = _Waiter(preferred, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the result.
            async with asyncio.timeout(timeout_s):
                return await waiter.granted
        except BaseException as error:
            self._abandon(waiter)
            if isinstance(error, TimeoutError):
                raise self._full(f"no engine had room within {timeout_s:g} s") from error
            raise

    def _abandon(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if not waiter.granted.done():
            waiter.granted.cancel()
            return
        # Room was granted in the very moment that we gave up: pass it on.
        slot = waiter.granted.result() if not waiter.granted.cancelled() else None
        if slot is not None:
            slot.in_flight -= 1
            self.wake()

    @staticmethod
    def _full(why: str) -> QuotaExceeded:
        return QuotaExceeded(f"{why}: try again later", which="queue", details={"reason": Reason.QUEUE_FULL})
