"""The serving set of one alias: start, watch, restart with backoff, and all-or-nothing loading of a version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.log import get_logger
from longshore_inference_gateway.domain.engine_pool import EnginePool, EngineSlot
from longshore_inference_gateway.domain.models import EngineState, ServedBase
from longshore_inference_gateway.domain.ports import EngineHandle, EngineLauncher

log = get_logger(__name__)

_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0


class ServingSet:
    """Engines that serve one base model and its adapters.

    `adapters` gives name and folder of every version that a (re)started engine must hold.
    """

    def __init__(
        self,
        *,
        base: ServedBase,
        launcher: EngineLauncher,
        pool: EnginePool,
        clock: Clock,
        adapters: Callable[[], Iterable[tuple[str, str]]],
    ) -> None:
        self.pool = pool
        self._base = base
        self._launcher = launcher
        self._clock = clock
        self._adapters = adapters
        self._watchers: list[asyncio.Task[None]] = []
        # A restart must not load the set of adapters while a publish changes it.
        self._changing = asyncio.Lock()
        self._settled = asyncio.Event()
        self._failed: set[int] = set()
        self._context_length = 0

    @property
    def context_length(self) -> int:
        """Tokens, prompt and completion together; 0 while no engine has been ready."""
        return self._context_length

    async def start(self) -> None:
        """Starts every engine of the set.

        Raises:
            Internal, Unavailable, QuotaExceeded, InvalidSpec: one does not start; then none is left running.
        """
        try:
            await self._launch_all()
        except BaseException:
            await self.stop()
            raise
        self._watch_all()

    async def resume(self) -> bool:
        """Starts every engine and never gives up: one that does not come up is tried again with backoff.

        Returns once an engine is ready (true), or each has failed once (false).
        """
        self.pool.slots = [EngineSlot(index) for index in range(self._launcher.size)]
        self._watch_all()
        await self._settled.wait()
        return any(slot.state is EngineState.READY for slot in self.pool.slots)

    async def _launch_all(self) -> None:
        self.pool.slots = [EngineSlot(index) for index in range(self._launcher.size)]
        results = await asyncio.gather(*(self._launch(slot) for slot in self.pool.slots), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

    def _watch_all(self) -> None:
        self._watchers = [asyncio.create_task(self._watch(slot)) for slot in self.pool.slots]

    async def stop(self) -> None:
        """Nobody needs the base any more: ends the engines."""
        handles = await self._leave()
        await asyncio.gather(*(handle.stop() for handle in handles))
        await self._launcher.free(self._base)

    async def release(self) -> None:
        """The gateway ends: engines that can live without it go on."""
        handles = await self._leave()
        await asyncio.gather(*(handle.release() for handle in handles))

    async def _leave(self) -> list[EngineHandle]:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        for slot in self.pool.slots:
            slot.state, slot.detail = EngineState.STOPPED, "stopped"
        self.pool.wake()
        handles = [slot.handle for slot in self.pool.slots if slot.handle is not None]
        for slot in self.pool.slots:
            slot.handle = None
        return handles

    async def load(self, name: str, folder: str) -> int:
        """Loads an adapter on every engine that serves, or on none; gives their number.

        An engine that is starting does not serve: before it does, it is given all of `adapters`.

        Raises:
            Internal, Unavailable: an engine failed, or none serves; where it was loaded it is unloaded again.
        """
        async with self._changing:
            handles = self._ready_handles()
            results = await asyncio.gather(
                *(handle.client.load_adapter(name, folder) for handle in handles), return_exceptions=True
            )
            failures = [result for result in results if isinstance(result, BaseException)]
            if failures:
                # Everywhere: an engine that did not answer in time may have loaded it all the same.
                await self._unload(handles, name)
                raise failures[0]
            return len(handles)

    async def unload(self, name: str) -> None:
        """Unloads an adapter wherever it is; engines that fail to are left to their restart."""
        async with self._changing:
            await self._unload([slot.handle for slot in self.pool.slots if slot.handle is not None], name)

    def _ready_handles(self) -> list[EngineHandle]:
        handles = [s.handle for s in self.pool.slots if s.state is EngineState.READY and s.handle is not None]
        if not handles:
            raise self.pool.unavailable()
        return handles

    async def _unload(self, handles: list[EngineHandle], name: str) -> None:
        results = await asyncio.gather(*(h.client.unload_adapter(name) for h in handles), return_exceptions=True)
        for handle, result in zip(handles, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("adapter not unloaded", engine=handle.engine_id, adapter=name, error=str(result))

    async def _launch(self, slot: EngineSlot) -> None:
        slot.state, slot.detail = EngineState.STARTING, "starting"
        handle = await self._launcher.launch(slot.index, self._base)
        async with self._changing:
            try:
                await self._settle_adapters(handle)
            except BaseException:
                await handle.release()
                raise
            slot.handle, slot.state, slot.detail = handle, EngineState.READY, ""
            lengths = [other.handle.context_length for other in self.pool.slots if other.handle is not None]
            self._context_length = min(lengths)
        self.pool.wake()

    async def _settle_adapters(self, handle: EngineHandle) -> None:
        """Loads what is missing, unloads what an engine that was taken over still holds of this alias."""
        wanted = dict(self._adapters())
        held = [name for name in (await handle.client.served_names())[0] if self._base.is_adapter(name)]
        for name in held:
            if name not in wanted:
                await handle.client.unload_adapter(name)
        for name, folder in wanted.items():
            if name not in held:
                await handle.client.load_adapter(name, folder)

    async def _watch(self, slot: EngineSlot) -> None:
        backoff = _FIRST_BACKOFF_S
        while True:
            if slot.handle is not None:
                why = await slot.handle.wait_failed()
                log.error("engine lost", engine=slot.engine_id, reason=why)
                lost, slot.handle = slot.handle, None
                slot.state, slot.detail = EngineState.STARTING, f"restarting after: {why}"
                self.pool.wake()
                await lost.stop()
            try:
                await self._launch(slot)
                backoff = _FIRST_BACKOFF_S
                self._settled.set()
            except LongshoreError as error:
                slot.state, slot.detail = EngineState.STARTING, f"did not start: {error.message}"
                log.error("engine did not start", index=slot.index, error=error.message, retry_in_s=backoff)
                self._failed.add(slot.index)
                if len(self._failed) == len(self.pool.slots):
                    self._settled.set()
                await self._clock.sleep(backoff)
                backoff = min(2 * backoff, _MAX_BACKOFF_S)
