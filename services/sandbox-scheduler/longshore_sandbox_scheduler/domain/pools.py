"""Warm pools: sandboxes started before their claims, as many as announced attempts and waiting claims need."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.domain.model import Template
from longshore_sandbox_scheduler.domain.ports import Leadership
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, RunningSandbox, WarmRuntime, WarmSandbox

log = get_logger(__name__)

_ROUND_S = 1.0
_SHORTEST_ROUND_S = 0.1
_FIRST_PAUSE_S = 2.0
_MAX_PAUSE_S = 120.0


@dataclass(frozen=True)
class PoolPolicy:
    """Numbers of all pools. Zero `max_per_template` means no warm pools."""

    max_per_template: int = 0
    """Most warm sandboxes of one template, starting ones included."""
    keep_per_template: int = 0
    """Kept for a template that is in use, without any announced demand."""
    refill_per_s: float = 10.0
    """Most starts a second, over all templates."""
    idle_s: float = 300.0
    """A template that nobody asked for in this time loses its pool, seconds."""


@dataclass
class _Pool:
    template: Template
    asked_at: float
    demand: dict[str, int]
    hits: int = 0
    misses: int = 0
    failures: int = 0
    paused_until: float = 0.0

    @property
    def wanted(self) -> int:
        return sum(self.demand.values())


@dataclass(frozen=True)
class Taken:
    """A warm sandbox that is the caller's now."""

    sandbox_id: str
    running: RunningSandbox


@dataclass(frozen=True)
class PoolState:
    """One pool as seen now."""

    template: Template
    ready: int
    starting: int
    target: int
    demand: int
    hits: int
    misses: int


class WarmPools:
    """Every scheduler takes from the pools; only the leader fills and trims them (`refill`)."""

    def __init__(self, runtime: WarmRuntime, clock: Clock, policy: PoolPolicy, places: int) -> None:
        self._runtime = runtime
        self._clock = clock
        self._policy = policy
        self._places = places
        self._pools: dict[str, _Pool] = {}
        self._taken: set[str] = set()
        self._tokens = 0.0
        self._filled_at = clock.monotonic()
        self._changed = asyncio.Event()

    # -- demand

    def ask(self, template: Template) -> None:
        """Notes that a template is in use."""
        pool = self._pool(template)
        pool.asked_at = self._clock.monotonic()

    def set_demand(self, run_id: str, demand: Mapping[str, tuple[Template, int]]) -> None:
        """Replaces what a run announced, by template key."""
        for pool in self._pools.values():
            pool.demand.pop(run_id, None)
        for template, count in demand.values():
            if count > 0:
                self.ask(template)
                self._pool(template).demand[run_id] = count
        self._changed.set()

    def _pool(self, template: Template) -> _Pool:
        key = template.key
        if key not in self._pools:
            self._pools[key] = _Pool(template, self._clock.monotonic(), {})
        return self._pools[key]

    def target(self, key: str) -> int:
        """How many warm sandboxes a template should have."""
        pool = self._pools.get(key)
        if pool is None or self._clock.monotonic() - pool.asked_at > self._policy.idle_s:
            return 0
        return min(self._policy.max_per_template, max(self._policy.keep_per_template, pool.wanted))

    # -- claims

    async def take(self, template: Template, tag: ClaimTag) -> Taken | None:
        """A warm sandbox of the template, now the caller's; None when there is none. Never the same one twice."""
        self.ask(template)
        pool = self._pool(template)
        taken = await self._take(template, tag)
        if taken is None:
            pool.misses += 1
        else:
            pool.hits += 1
        metrics.POOL_TAKES.labels("miss" if taken is None else "hit").inc()
        served = pool.demand.get(tag.run_id, 0)
        if served:
            pool.demand[tag.run_id] = served - 1
        self._changed.set()
        return taken

    async def _take(self, template: Template, tag: ClaimTag) -> Taken | None:
        key = template.key
        while True:
            found = next((name for name in self._runtime.ready(key) if name not in self._taken), "")
            if not found:
                return None
            # Taken for good within this process; between processes the runtime's claim decides.
            self._taken.add(found)
            running = await self._runtime.claim(found, template, tag)
            if running is not None:
                return Taken(found, running)

    async def make_room(self, count: int = 1) -> None:
        """Before a cold start: discards warm sandboxes, least wanted first, so that it fits into the places."""
        surplus = self._runtime.population + count - self._places
        if surplus <= 0:
            return
        idle = [one for one in self._runtime.warm() if one.sandbox_id not in self._taken]
        idle.sort(key=lambda one: self.target(one.template_key))
        for one in idle[:surplus]:
            self._taken.add(one.sandbox_id)
            await self._discard(one, "its place is needed")

    # -- the leader's part

    async def serve(self, leadership: Leadership) -> None:
        """While leader runs `refill` every second and at each change; until cancelled."""
        while True:
            self._changed.clear()
            self._show()
            if leadership.is_leader:
                await self._refill_quietly()
            await self._pause()

    def _show(self) -> None:
        """Sets the gauges; templates come and go, so old ones are cleared first."""
        metrics.POOL.clear()
        for state in self.states():
            for name, count in (("ready", state.ready), ("starting", state.starting), ("target", state.target)):
                metrics.POOL.labels(state.template.key, name).set(count)

    async def _refill_quietly(self) -> None:
        try:
            await self.refill()
        except LongshoreError as error:
            log.warning("pools could not be refilled", error=error.message)

    async def _pause(self) -> None:
        # Claims come by the hundred; a round looks at every warm sandbox.
        await asyncio.sleep(_SHORTEST_ROUND_S)
        try:
            async with asyncio.timeout(_ROUND_S):
                await self._changed.wait()
        except TimeoutError:
            return

    async def refill(self) -> None:
        """One round: starts what is missing, discards what nobody wants."""
        warm = self._runtime.warm()
        self._forget({one.sandbox_id for one in warm})
        by_key: defaultdict[str, list[WarmSandbox]] = defaultdict(list)
        for one in warm:
            if one.sandbox_id not in self._taken:
                by_key[one.template_key].append(one)
        for key, ones in by_key.items():
            for one in ones[self.target(key) :]:
                self._taken.add(one.sandbox_id)
                await self._discard(one, "nobody wants it")
        missing = Counter({key: self.target(key) - len(by_key[key]) for key in list(self._pools)})
        await self._start(missing)

    def _forget(self, present: set[str]) -> None:
        self._taken &= present
        now = self._clock.monotonic()
        stale = [key for key, pool in self._pools.items() if now - pool.asked_at > 2 * self._policy.idle_s]
        for key in stale:
            del self._pools[key]

    async def _start(self, missing: Counter[str]) -> None:
        now = self._clock.monotonic()
        burst = max(1.0, self._policy.refill_per_s)
        self._tokens = min(burst, self._tokens + (now - self._filled_at) * self._policy.refill_per_s)
        self._filled_at = now
        room = self._places - self._runtime.population
        starts = []
        while room > 0 and self._tokens >= 1 and (key := self._neediest(missing, now)):
            missing[key] -= 1
            room -= 1
            self._tokens -= 1
            starts.append(self._start_one(self._pools[key]))
        await asyncio.gather(*starts)

    def _neediest(self, missing: Counter[str], now: float) -> str:
        open_keys = [key for key, count in missing.items() if count > 0 and self._pools[key].paused_until <= now]
        return max(open_keys, key=lambda key: missing[key], default="")

    async def _start_one(self, pool: _Pool) -> None:
        try:
            await self._runtime.start_warm(new_id("sandbox"), pool.template)
            pool.failures = 0
        except LongshoreError as error:
            # A full quota or a bad image: every pool would otherwise hammer the API server.
            now = self._clock.monotonic()
            if pool.paused_until > now:
                return  # Of the same round as one that failed before.
            pool.failures += 1
            pause = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** (pool.failures - 1))
            pool.paused_until = now + pause
            log.warning("cannot start a warm sandbox", template=pool.template.key, error=error.message, pause_s=pause)

    async def _discard(self, one: WarmSandbox, why: str) -> None:
        try:
            await self._runtime.discard(one.sandbox_id)
            log.info("warm sandbox discarded", sandbox_id=one.sandbox_id, why=why)
        except LongshoreError as error:
            log.warning("cannot discard a warm sandbox", sandbox_id=one.sandbox_id, error=error.message)
            self._taken.discard(one.sandbox_id)

    def states(self) -> list[PoolState]:
        """All pools that are known here."""
        ready: Counter[str] = Counter()
        starting: Counter[str] = Counter()
        for one in self._runtime.warm():
            (ready if one.ready else starting)[one.template_key] += 1
        return [
            PoolState(pool.template, ready[key], starting[key], self.target(key), pool.wanted, pool.hits, pool.misses)
            for key, pool in sorted(self._pools.items())
        ]
