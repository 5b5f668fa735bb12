"""Grants sandboxes and keeps their leases. The only place that changes a sandbox's state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longshore_common.clock import Clock
from longshore_common.errors import (
    Conflict,
    InvalidSpec,
    LongshoreError,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.domain.admission import Admission
from longshore_sandbox_scheduler.domain.execs import ExecTable
from longshore_sandbox_scheduler.domain.model import (
    Claim,
    Demand,
    EndReason,
    Grant,
    LaunchType,
    Limits,
    Network,
    Sandbox,
    SandboxState,
    TaskEnvironment,
    Template,
)
from longshore_sandbox_scheduler.domain.pools import PoolState, WarmPools
from longshore_sandbox_scheduler.domain.ports import AgentTokens, Leadership, Records, Tasks
from longshore_sandbox_scheduler.domain.runtime import (
    ClaimTag,
    PreparedImage,
    RemoteAgent,
    Removed,
    RunningSandbox,
    Runtime,
    SandboxEnd,
    SandboxFailed,
)
from longshore_sandbox_scheduler.domain.subscribers import Subscribers

log = get_logger(__name__)

_MAX_TTL_S = 7 * 86400.0
_PRUNE_EVERY = 3600


@dataclass(frozen=True)
class Policy:
    """Numbers of the scheduler; times in seconds."""

    default_limits: Limits
    claim_wait_s: float
    default_ttl_s: float
    max_life_s: float
    sweep_interval_s: float
    orphan_sweep_interval_s: float
    keep_ended_s: float
    owner: str
    agent_address: str


@dataclass(eq=False)
class Live:
    """A sandbox that runs."""

    sandbox: Sandbox
    running: RunningSandbox
    execs: ExecTable | None
    """Of an agent that this process hosts; None: the agent is in the sandbox."""
    closing: asyncio.Task[None] | None = None
    usage_check: asyncio.Task[None] | None = None


class Scheduler:
    """See the module."""

    def __init__(
        self,
        runtime: Runtime,
        records: Records,
        tasks: Tasks,
        clock: Clock,
        admission: Admission,
        policy: Policy,
        tokens: AgentTokens,
        leadership: Leadership,
        pools: WarmPools | None = None,
    ) -> None:
        self._runtime = runtime
        self._records = records
        self._tasks = tasks
        self._clock = clock
        self._admission = admission
        self._policy = policy
        self._tokens = tokens
        self._leadership = leadership
        self._pools = pools
        self._live: dict[str, Live] = {}
        self._claims: dict[str, asyncio.Task[Grant]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._subscribers = Subscribers()
        self._orphans_swept_at = -policy.orphan_sweep_interval_s
        self._rounds = 0

    # -- life of the service

    async def start(self) -> None:
        """Takes over what earlier schedulers left: goes on with what outlived them, ends and removes the rest."""
        await self._runtime.start()
        metrics.PLACES.labels(self._runtime.name).set(self._admission.places)
        for sandbox in await self._records.unended_of(self._policy.owner):
            await self._take_over(sandbox)
        removed = await self._runtime.sweep([*self._live])
        if removed:
            log.info("removed what an earlier scheduler left", objects=len(removed))

    async def _take_over(self, sandbox: Sandbox) -> None:
        if not self._runtime.outlives_scheduler:
            await self._record(sandbox.ended(EndReason.LOST, "the scheduler process ended", self._clock.now_ms()))
        elif sandbox.state is SandboxState.READY:
            await self._adopt(sandbox)

    async def _adopt(self, sandbox: Sandbox) -> Live | None:
        """A sandbox claimed through another scheduler, or before a restart; None when it has ended."""
        found = await self._runtime.find(sandbox.sandbox_id, sandbox.instance)
        if isinstance(found, SandboxEnd):
            await self._record(sandbox.ended(found.reason, found.detail, self._clock.now_ms()))
            return None
        if sandbox.sandbox_id not in self._live:
            self._admission.take(sandbox.run_id)
            metrics.ACTIVE.labels(self._runtime.name).inc()
            self._enter(sandbox, found)
        return self._live[sandbox.sandbox_id]

    async def stop(self) -> None:
        """Ends every sandbox, unless they outlive this process."""
        for task in list(self._claims.values()):
            task.cancel()
        await asyncio.gather(*self._claims.values(), return_exceptions=True)
        if not self._runtime.outlives_scheduler:
            detail = "the scheduler was stopped"
            await asyncio.gather(*(self._end(live, EndReason.DELETED, detail) for live in list(self._live.values())))
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._runtime.stop()

    async def sweep_forever(self) -> None:
        """Ends expired sandboxes and those beyond a watched limit, and removes orphans, until cancelled."""
        while True:
            await self._clock.sleep(self._policy.sweep_interval_s)
            try:
                await self.sweep_once()
            except LongshoreError as error:
                log.warning("a sweep failed; the next one goes on", error=error.message)

    async def sweep_once(self) -> None:
        """One round of `sweep_forever`."""
        for live in list(self._live.values()):
            if live.usage_check is None or live.usage_check.done():
                live.usage_check = self._spawn(self._check_usage(live))
        if not self._leadership.is_leader:
            return
        for sandbox in await self._records.expired(self._policy.owner, self._clock.now_ms()):
            self._spawn(self._expire(sandbox))
        now = self._clock.monotonic()
        if now - self._orphans_swept_at >= self._policy.orphan_sweep_interval_s:
            self._orphans_swept_at = now
            await self.sweep_orphans(dry_run=False)
        self._rounds += 1
        if self._rounds % _PRUNE_EVERY == 1:
            await self._records.prune(self._clock.now_ms() - int(1000 * self._policy.keep_ended_s))

    async def sweep_orphans(self, dry_run: bool) -> Sequence[Removed]:
        """Removes objects of all kinds that belong to no sandbox on record; what it removed (or would)."""
        kept = {sandbox.sandbox_id for sandbox in await self._records.unended_of(self._policy.owner)}
        removed = await self._runtime.sweep(kept | self._live.keys(), dry_run)
        for one in removed:
            log.info("orphan", kind=one.kind, name=one.name, why=one.why, removed=not dry_run)
            if not dry_run:
                metrics.SWEPT.labels(one.kind).inc()
        return removed

    async def _expire(self, sandbox: Sandbox) -> None:
        now = self._clock.now_ms()
        late = sandbox.deadline_at_ms and sandbox.deadline_at_ms <= now
        reason = EndReason.DEADLINE_EXCEEDED if late else EndReason.EXPIRED
        detail = "it lived as long as it may" if late else "the lease was not renewed"
        live = await self._find(sandbox.sandbox_id) if sandbox.state is SandboxState.READY else None
        if live is not None:
            await self._end(live, reason, detail)
        elif sandbox.state is SandboxState.STARTING and sandbox.sandbox_id not in self._live:
            await self._record(sandbox.ended(EndReason.LOST, "its claim was never answered", now))

    async def _check_usage(self, live: Live) -> None:
        with contextlib.suppress(Unavailable):
            over = await live.running.usage_over_limit()
            if over:
                reason = EndReason.OOM if over.startswith("memory") else EndReason.EVICTED
                await self._end(live, reason, over)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # -- images

    async def prepare(self, task_digest: str) -> PreparedImage:
        """The image of a task, built if need be. Raises NotFound, InvalidSpec."""
        return await self._prepare(await self._environment(task_digest))

    async def _environment(self, task_digest: str) -> TaskEnvironment:
        if not task_digest:
            raise InvalidSpec("task_digest is empty", field="task_digest")
        return await self._tasks.environment(task_digest)

    async def _prepare(self, environment: TaskEnvironment) -> PreparedImage:
        prepared = await self._runtime.prepare(environment, lambda: self._tasks.bundle(environment.digest))
        if prepared.built:
            metrics.BUILDS.labels(self._runtime.name).observe(prepared.seconds)
        return prepared

    async def _template(self, task_digest: str, limits: Limits, network: Network | None) -> Template:
        environment = await self._environment(task_digest)
        own = environment.limits.or_default(self._policy.default_limits)
        granted = self._network(environment, network)
        image = (await self._prepare(environment)).image
        return Template(image, own.lowered_by(limits), granted)

    def _network(self, environment: TaskEnvironment, wish: Network | None) -> Network:
        """The caller's wish must be honoured; what a task asks for is honoured where the runtime can."""
        offered = self._runtime.networks
        if wish is None and environment.network is not None and environment.network.kind in offered:
            return environment.network
        granted = wish or Network(self._runtime.default_network)
        if granted.kind not in offered:
            names = ", ".join(sorted(offered)) or "none (its log says why)"
            raise InvalidSpec(
                f"network class {granted.kind} is not granted by runtime {self._runtime.name} here; it offers {names}",
                field="network",
            )
        return granted

    # -- claims

    async def claim(self, claim: Claim, wait_s: float | None = None) -> Grant:
        """A ready sandbox. The same idempotency key gives the same sandbox.

        Waits in line for a place, at most wait_s seconds (none: the policy's).

        Raises:
            NotFound: no such task.
            InvalidSpec: a limit, the network or the task's environment cannot be honoured.
            QuotaExceeded: no place became free.
            Conflict: the key's sandbox has ended.
            Unavailable: the sandbox did not start.
        """
        if not 0 <= claim.ttl_s <= _MAX_TTL_S:
            raise InvalidSpec(f"ttl_s is {claim.ttl_s}; it must be 0 to {_MAX_TTL_S:.0f}", field="ttl_s")
        bound = self._policy.claim_wait_s if wait_s is None else min(wait_s, self._policy.claim_wait_s)
        if not claim.idempotency_key:
            return await self._claim(claim, bound)
        return await self._claim_once(claim, bound)

    async def _claim_once(self, claim: Claim, wait_s: float) -> Grant:
        key = claim.idempotency_key
        task = self._claims.get(key)
        if task is None:
            task = asyncio.create_task(self._claim_by_key(claim, wait_s))
            self._claims[key] = task
            task.add_done_callback(lambda done: self._claims.pop(key, None) and (done.cancelled() or done.exception()))
        # Shielded: a caller that gives up may come again with its key.
        return await asyncio.shield(task)

    async def _claim_by_key(self, claim: Claim, wait_s: float) -> Grant:
        known = await self._records.by_key(claim.idempotency_key)
        if known is None or known.end_reason is EndReason.START_FAILED:
            return await self._claim(claim, wait_s)
        if known.task_digest != claim.task_digest:
            raise Conflict(f"idempotency key {claim.idempotency_key!r} belongs to a claim for {known.task_digest}")
        if known.state is SandboxState.STARTING:
            raise Unavailable(f"sandbox {known.sandbox_id} of key {claim.idempotency_key!r} is still starting")
        live = await self._find(known.sandbox_id)
        if live is None:
            known = await self.get(known.sandbox_id)
            raise Conflict(
                f"sandbox {known.sandbox_id} of key {claim.idempotency_key!r} has ended "
                f"({known.end_reason}: {known.end_detail}); use a new key"
            )
        return self._grant(live)

    async def _claim(self, claim: Claim, wait_s: float) -> Grant:
        began = self._clock.monotonic()
        template = await self._template(claim.task_digest, claim.limits, claim.network)
        asked = self._clock.monotonic()
        name = self._runtime.name
        metrics.WAITING.labels(name).inc()
        try:
            await self._admission.acquire(wait_s, claim.run_id, claim.priority)
        except QuotaExceeded:
            metrics.REFUSED.labels(name).inc()
            raise
        finally:
            metrics.WAITING.labels(name).dec()
            metrics.QUEUE_SECONDS.labels(name).observe(self._clock.monotonic() - asked)
        metrics.ACTIVE.labels(name).inc()
        try:
            live = await self._start(claim, template)
        except BaseException as error:
            self._free_place(claim.run_id)
            metrics.STARTS.labels(name, "failed").inc()
            metrics.FAILURES.labels(name, _cause(error)).inc()
            raise
        launch = live.sandbox.launch.value
        metrics.STARTS.labels(name, "ok").inc()
        metrics.START_SECONDS.labels(name, launch).observe(self._clock.monotonic() - began)
        return self._grant(live)

    def _free_place(self, run_id: str) -> None:
        self._admission.release(run_id)
        metrics.ACTIVE.labels(self._runtime.name).dec()

    async def _start(self, claim: Claim, template: Template) -> Live:
        sandbox = self._record_of(claim, template)
        await self._records.insert(sandbox)
        self._subscribers.publish(sandbox)
        tag = ClaimTag(
            claim.run_id, claim.attempt_id, claim.task_digest, claim.idempotency_key, self._policy.max_life_s
        )
        try:
            warm_id, running = await self._obtain(sandbox.sandbox_id, template, tag)
        except (LongshoreError, asyncio.CancelledError) as error:
            detail = error.message if isinstance(error, LongshoreError) else "the claim was cancelled"
            await self._record(sandbox.ended(EndReason.START_FAILED, detail, self._clock.now_ms()))
            raise
        ready = replace(
            sandbox,
            sandbox_id=warm_id or sandbox.sandbox_id,
            launch=LaunchType.WARM if warm_id else LaunchType.COLD,
            state=SandboxState.READY,
            enforcement=dict(running.enforcement),
            instance=running.instance,
            node=running.node,
            image_digest=running.image_digest or template.image.digest,
            expires_at_ms=self._expiry(claim.ttl_s),
        )
        live = self._enter(ready, running)
        try:
            # The record takes a warm sandbox's own name.
            await (self._records.rename(sandbox.sandbox_id, ready) if warm_id else self._records.update(ready))
        except BaseException:
            await asyncio.shield(self._give_up(live))
            raise
        self._subscribers.publish(ready)
        return live

    async def _give_up(self, live: Live) -> None:
        """Ends a sandbox that is on no record; its claim fails and gives the place back."""
        del self._live[live.sandbox.sandbox_id]
        live.closing = asyncio.current_task()
        await live.running.stop(SandboxEnd(EndReason.START_FAILED, "it could not be recorded"))

    async def _obtain(self, sandbox_id: str, template: Template, tag: ClaimTag) -> tuple[str, RunningSandbox]:
        """A warm sandbox with its id, else a fresh one with an empty one."""
        if self._pools is not None:
            taken = await self._pools.take(template, tag)
            if taken is not None:
                return taken.sandbox_id, taken.running
            await self._pools.make_room()
        return "", await self._runtime.launch(sandbox_id, template, tag)

    def _enter(self, sandbox: Sandbox, running: RunningSandbox) -> Live:
        hosted = running.access
        execs = (
            None
            if isinstance(hosted, RemoteAgent)
            else ExecTable(hosted, self._clock, metrics.EXECS.labels(self._runtime.name).inc)
        )
        live = Live(sandbox, running, execs)
        self._live[sandbox.sandbox_id] = live
        running.ended.add_done_callback(lambda _: self._on_ended(live))
        return live

    def _record_of(self, claim: Claim, template: Template) -> Sandbox:
        now = self._clock.now_ms()
        return Sandbox(
            sandbox_id=new_id("sandbox"),
            state=SandboxState.STARTING,
            task_digest=claim.task_digest,
            run_id=claim.run_id,
            attempt_id=claim.attempt_id,
            created_at_ms=now,
            expires_at_ms=self._expiry(claim.ttl_s),
            limits=template.limits,
            runtime=self._runtime.name,
            owner=self._policy.owner,
            idempotency_key=claim.idempotency_key,
            image_digest=template.image.digest,
            network=template.network.kind,
            deadline_at_ms=now + int(1000 * self._policy.max_life_s),
        )

    def _expiry(self, ttl_s: float) -> int:
        return self._clock.now_ms() + int(1000 * (ttl_s or self._policy.default_ttl_s))

    def _grant(self, live: Live, relayed: bool = False) -> Grant:
        sandbox, access = live.sandbox, live.running.access
        direct = isinstance(access, RemoteAgent) and access.direct and not relayed
        address = access.address if isinstance(access, RemoteAgent) and direct else self._policy.agent_address
        token = self._tokens.mint(sandbox.sandbox_id, sandbox.instance, sandbox.deadline_at_ms)
        return Grant(sandbox, address, token)

    async def grant_access(self, sandbox_id: str) -> Grant:
        """A way in that passes this scheduler. Raises NotFound, Conflict when it has ended."""
        return self._grant(await self._running(sandbox_id), relayed=True)

    # -- ends

    def _on_ended(self, live: Live) -> None:
        if live.closing is None:
            end = live.running.ended.result()
            # At once, so that whoever sees a command end can ask why.
            live.sandbox = live.sandbox.ended(end.reason, end.detail, self._clock.now_ms())
            live.closing = self._spawn(self._close(live))

    async def _close(self, live: Live) -> None:
        self._free_place(live.sandbox.run_id)
        metrics.ENDS.labels(self._runtime.name, live.sandbox.end_reason.value).inc()
        await self._record(live.sandbox)
        if live.execs is not None:
            await live.execs.close()
        del self._live[live.sandbox.sandbox_id]

    async def _end(self, live: Live, reason: EndReason, detail: str) -> None:
        await live.running.stop(SandboxEnd(reason, detail))
        self._on_ended(live)
        assert live.closing is not None
        await asyncio.shield(live.closing)

    async def _record(self, sandbox: Sandbox) -> None:
        await self._records.update(sandbox)
        self._subscribers.publish(sandbox)

    # -- what callers ask

    async def _find(self, sandbox_id: str) -> Live | None:
        """The running sandbox of this id, also one that another scheduler granted; None when it has ended.

        Raises NotFound.
        """
        live = self._live.get(sandbox_id)
        if live is None:
            sandbox = await self.get(sandbox_id)
            if self._runtime.outlives_scheduler and sandbox.state is SandboxState.READY:
                live = await self._adopt(sandbox)
        return live if live and live.sandbox.state is not SandboxState.ENDED else None

    async def _running(self, sandbox_id: str) -> Live:
        live = await self._find(sandbox_id)
        if live is None:
            sandbox = await self.get(sandbox_id)
            raise Conflict(f"sandbox {sandbox_id} has ended ({sandbox.end_reason}: {sandbox.end_detail})")
        return live

    async def renew(self, sandbox_id: str, ttl_s: float) -> int:
        """Moves the lease's end to ttl_s seconds from now; gives it in ms. Raises NotFound, Conflict, InvalidSpec."""
        if not 0 <= ttl_s <= _MAX_TTL_S:
            raise InvalidSpec(f"ttl_s is {ttl_s}; it must be 0 to {_MAX_TTL_S:.0f}", field="ttl_s")
        live = await self._running(sandbox_id)
        live.sandbox = replace(live.sandbox, expires_at_ms=self._expiry(ttl_s))
        await self._records.update(live.sandbox)
        return live.sandbox.expires_at_ms

    async def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox; an ended one is no error. Raises NotFound."""
        live = await self._find(sandbox_id)
        if live is not None:
            await self._end(live, EndReason.DELETED, "")

    async def get(self, sandbox_id: str) -> Sandbox:
        """Raises NotFound."""
        live = self._live.get(sandbox_id)
        sandbox = live.sandbox if live else await self._records.get(sandbox_id)
        if sandbox is None:
            raise NotFound(f"no sandbox {sandbox_id!r}")
        return sandbox

    async def list(self, run_id: str, include_ended: bool) -> Sequence[Sandbox]:
        """Sandboxes of a run (empty: of all), oldest first."""
        return await self._records.list(run_id, include_ended)

    def watch(self, run_id: str) -> AsyncIterator[Sandbox]:
        """State changes from now on. Raises Unavailable when the reader is too slow."""
        return self._subscribers.watch(run_id)

    async def by_token(self, token: str) -> Live:
        """The running sandbox of an agent token.

        Raises:
            PermissionDenied: not a token of a running sandbox.
        """
        sandbox_id, instance = self._tokens.sandbox_of(token)
        try:
            live = await self._find(sandbox_id)
        except NotFound:
            live = None
        if live is None or live.sandbox.instance != instance:
            raise PermissionDenied("the token belongs to no running sandbox; claim one")
        return live

    async def set_demand(self, run_id: str, demands: Sequence[Demand]) -> None:
        """Replaces what a run announced that it will claim. Raises NotFound, InvalidSpec."""
        if self._pools is None:
            return
        wanted: dict[str, tuple[Template, int]] = {}
        for demand in demands:
            if demand.count < 0:
                raise InvalidSpec(f"count is {demand.count}; it must not be negative", field="demands.count")
            template = await self._template(demand.task_digest, demand.limits, demand.network)
            before = wanted.get(template.key, (template, 0))[1]
            wanted[template.key] = (template, before + demand.count)
        self._pools.set_demand(run_id, wanted)

    def pools(self) -> Sequence[PoolState]:
        """The warm pools; none where the runtime has none."""
        return self._pools.states() if self._pools else []

    def background(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Work that goes on while the service runs."""
        pools = self._pools
        if pools is None:
            return (self.sweep_forever,)
        return self.sweep_forever, lambda: pools.serve(self._leadership)


def _cause(error: BaseException) -> str:
    if isinstance(error, SandboxFailed):
        return error.reason.value
    return error.code.value if isinstance(error, LongshoreError) else "cancelled"
