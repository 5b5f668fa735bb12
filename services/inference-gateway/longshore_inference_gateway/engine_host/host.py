"""At most one vLLM, for whatever base it is ordered to serve: the order, its state, why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from longshore_common.clock import Clock
from longshore_common.errors import ErrorCode, LongshoreError
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.domain.ports import EngineHandle

log = get_logger(__name__)

_NOBODY = ServedBase("", "", "")


class State(StrEnum):
    """Life of an order."""

    IDLE = "idle"
    VERIFYING = "verifying"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What the host does. since: monotonic seconds when it entered the state. failure: code and message."""

    state: State = State.IDLE
    base: ServedBase = _NOBODY
    instance: str = ""
    since: float = 0.0
    port: int = 0
    pid: int = 0
    context_length: int = 0
    failure: tuple[ErrorCode, str] | None = None


class Engines(Protocol):
    """Starts engines; see VllmProcesses."""

    async def prepare(self) -> None:
        """Makes the next start quick."""
        ...

    async def start(self, base: ServedBase, host: str, port: int) -> EngineHandle:
        """A ready engine. Raises Internal, InvalidSpec, Unavailable."""
        ...

    async def close(self) -> None:
        """Ends what was prepared."""
        ...


class ModelFolders(Protocol):
    """Knows whether a base model's folder is what it should be."""

    async def verify(self, base: ServedBase) -> None:
        """Raises InvalidSpec: missing, or other content."""
        ...


class EngineHost:
    """Serves one base at a time on host:port. Every method may be called at any time.

    on_state hears of each new state, with the seconds spent in the one before.
    """

    def __init__(
        self,
        engines: Engines,
        folders: ModelFolders,
        clock: Clock,
        *,
        host: str,
        port: int,
        prestart: bool,
        on_state: Callable[[State, State, float], None] = lambda old, new, seconds: None,
    ) -> None:
        self._engines = engines
        self._folders = folders
        self._clock = clock
        self._host = host
        self._port = port
        self._prestart = prestart
        self._on_state = on_state
        self._current: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The port and the memory are free only once the engine before has ended.
        self._one_engine = asyncio.Lock()
        self._status = HostStatus(since=clock.monotonic())

    @property
    def status(self) -> HostStatus:
        """Now."""
        return self._status

    async def prepare(self) -> None:
        """Starts a standby where that is wanted and nothing is served."""
        async with self._one_engine:
            await self._prepare()

    def serve(self, base: ServedBase) -> HostStatus:
        """Starts it and returns at once. The same base again is a no-op, unless it failed; another base replaces."""
        status = self._status
        if status.base == base and status.state is not State.FAILED:
            return status
        self._cancel()
        self._enter(HostStatus(State.VERIFYING, base, new_id("engine")))
        self._current = asyncio.create_task(self._run(base))
        # A cancelled one still has its engine to end.
        self._tasks.add(self._current)
        self._current.add_done_callback(self._tasks.discard)
        return self._status

    async def stop(self, base_name: str, instance: str) -> HostStatus:
        """Ends the engine if it serves this base and, unless instance is empty, is this instance."""
        status = self._status
        if status.base.name == base_name and instance in ("", status.instance):
            self._cancel()
            self._enter(HostStatus())
            await self.prepare()
        return self._status

    async def close(self) -> None:
        """Ends the engine and the standby."""
        self._cancel()
        self._enter(HostStatus())
        async with self._one_engine:
            await self._engines.close()

    async def _run(self, base: ServedBase) -> None:
        async with self._one_engine:
            try:
                await self._folders.verify(base)
                self._enter(replace(self._status, state=State.STARTING))
                engine = await self._engines.start(base, self._host, self._port)
                await self._watch(engine)
            except LongshoreError as error:
                self._fail(error.code, error.message)
            except Exception as error:
                log.error("unhandled error", exc_info=True)
                self._fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
            await self._prepare()

    async def _watch(self, engine: EngineHandle) -> None:
        try:
            ready = replace(self._status, state=State.READY, port=self._port, pid=engine.pid)
            self._enter(replace(ready, context_length=engine.context_length))
            why = await engine.wait_failed()
        finally:
            await engine.stop()
        self._fail(ErrorCode.INTERNAL, f"vLLM ended: {why}")

    async def _prepare(self) -> None:
        if not self._prestart or self._status.state in (State.STARTING, State.READY):
            return
        try:
            await self._engines.prepare()
        except LongshoreError as error:
            log.warning("no standby engine", error=error.message)

    def _cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()
            self._current = None

    def _fail(self, code: ErrorCode, message: str) -> None:
        log.error("engine failed", base=self._status.base.name, error=message)
        self._enter(replace(self._status, state=State.FAILED, failure=(code, message), port=0, pid=0))

    def _enter(self, status: HostStatus) -> None:
        now, before = self._clock.monotonic(), self._status
        if status.state is not before.state:
            log.info("engine state", state=status.state.value, base=status.base.name)
            self._on_state(before.state, status.state, now - before.since)
        self._status = replace(status, since=now)
