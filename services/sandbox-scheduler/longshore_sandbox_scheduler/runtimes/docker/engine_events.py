"""What the engine tells of our containers, and whether it is there at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from longshore_common.clock import Clock
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.runtimes.docker.container_spec import OWNER
from longshore_sandbox_scheduler.runtimes.docker.ends import ENDING_EVENTS
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError

log = get_logger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class EngineEvents:
    """One stream of events; after each break all containers are looked at once."""

    def __init__(
        self,
        api: EngineApi,
        owner: str,
        clock: Clock,
        ending: Callable[[str], Awaitable[None]],
        look_at_all: Callable[[], Awaitable[None]],
    ) -> None:
        """ending: the container of this name ends, or has. look_at_all: some may have ended unheard."""
        self._api = api
        self._owner = owner
        self._clock = clock
        self._ending = ending
        self._look_at_all = look_at_all

    async def run(self) -> None:
        """Until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._listen()
                pause_s = _FIRST_PAUSE_S
            except EngineError as error:
                log.warning("the engine's events broke off", error=error.message)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            await self._clock.sleep(pause_s)

    async def _listen(self) -> None:
        filters = {"type": ["container"], "label": [f"{OWNER}={self._owner}"]}
        async with self._api.streaming("GET", "/events", {"filters": json.dumps(filters)}) as events:
            await self._look_at_all()
            async for event in events:
                name = container_name(event)
                if name:
                    await self._ending(name)


def container_name(event: dict[str, Any]) -> str:
    """Of a container that ends; empty: another event."""
    action = str(event.get("Action") or event.get("status") or "").partition(":")[0]
    if action not in ENDING_EVENTS:
        return ""
    return str((event.get("Actor") or {}).get("Attributes", {}).get("name", ""))


class EngineWatch:
    """Says when the engine has been away for long."""

    def __init__(self, api: EngineApi, clock: Clock, every_s: float, lost_after_s: float) -> None:
        self._api = api
        self._clock = clock
        self._every_s = every_s
        self._lost_after_s = lost_after_s

    async def run(self, lost: Callable[[str], None]) -> None:
        """Calls lost with the reason at each round that finds it away for longer than that; until cancelled."""
        seen = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._every_s)
            try:
                async with asyncio.timeout(self._every_s):
                    await self._api.ping()
                seen = self._clock.monotonic()
            except (EngineError, TimeoutError) as error:
                away_s = self._clock.monotonic() - seen
                if away_s >= self._lost_after_s:
                    lost(f"the container engine has not answered for {away_s:.0f} s: {error}")
