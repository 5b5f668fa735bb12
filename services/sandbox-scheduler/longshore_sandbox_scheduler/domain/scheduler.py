"""Grants sandboxes and keeps their leases. The only place that changes a sandbox's state."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, InvalidSpec, LongshoreError, NotFound, PermissionDenied, Unavailable
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.domain.admission import Admission
from longshore_sandbox_scheduler.domain.execs import ExecTable
from longshore_sandbox_scheduler.domain.model import (
    Claim,
    EndReason,
    Grant,
    Image,
    Limits,
    Sandbox,
    SandboxState,
    TaskEnvironment,
)
from longshore_sandbox_scheduler.domain.ports import Records, Tasks
from longshore_sandbox_scheduler.domain.runtime import PreparedImage, RunningSandbox, Runtime, SandboxEnd

log = get_logger(__name__)

_WATCH_BACKLOG = 10_000
_MAX_TTL_S = 7 * 86400.0


@dataclass(frozen=True)
class Policy:
    """Numbers of the scheduler; times in seconds."""

    default_limits: Limits
    claim_wait_s: float
    default_ttl_s: float
    sweep_interval_s: float
    keep_ended_s: float
    owner: str
    agent_address: str


@dataclass
class Live:
    """A sandbox that runs."""

    sandbox: Sandbox
    running: RunningSandbox
    secret: str
    execs: ExecTable
    closing: asyncio.Task[None] | None = None
    usage_check: asyncio.Task[None] | None = None


@dataclass
class _Subscriber:
    run_id: str
    queue: asyncio.Queue[Sandbox] = field(default_factory=lambda: asyncio.Queue(_WATCH_BACKLOG))
    lost: bool = False


class Scheduler:
    """See the module."""

    def __init__(
        self, runtime: Runtime, records: Records, tasks: Tasks, clock: Clock, admission: Admission, policy: Policy
    ) -> None:
        self._runtime = runtime
        self._records = records
        self._tasks = tasks
        self._clock = clock
        self._admission = admission
        self._policy = policy
        self._live: dict[str, Live] = {}
        self._claims: dict[str, asyncio.Task[Grant]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._subscribers: list[_Subscriber] = []

    # -- life of the service

    async def start(self) -> None:
        """Ends in the records what a scheduler of this name left behind, and removes what is left of it."""
        await self._runtime.start()
        now = self._clock.now_ms()
        for sandbox in await self._records.unended_of(self._policy.owner):
            await self._records.update(sandbox.ended(EndReason.LOST, "the scheduler process ended", now))
        removed = await self._runtime.sweep(())
        if removed:
            log.info("removed what an earlier scheduler left", sandboxes=removed)

    async def stop(self) -> None:
        """Ends every sandbox."""
        for task in list(self._claims.values()):
            task.cancel()
        await asyncio.gather(*self._claims.values(), return_exceptions=True)
        detail = "the scheduler was stopped"
        await asyncio.gather(*(self._end(live, EndReason.DELETED, detail) for live in list(self._live.values())))
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._runtime.stop()

    async def sweep_forever(self) -> None:
        """Ends expired sandboxes and those beyond a watched limit, until cancelled."""
        rounds = 0
        while True:
            await self._clock.sleep(self._policy.sweep_interval_s)
            await self.sweep_once()
            rounds += 1
            if rounds % 3600 == 1:
                await self._records.prune(self._clock.now_ms() - int(1000 * self._policy.keep_ended_s))

    async def sweep_once(self) -> None:
        """One round of `sweep_forever`."""
        now = self._clock.now_ms()
        for live in list(self._live.values()):
            if live.sandbox.expires_at_ms <= now:
                self._spawn(self._end(live, EndReason.EXPIRED, "the lease was not renewed"))
            elif live.usage_check is None or live.usage_check.done():
                live.usage_check = self._spawn(self._check_usage(live))

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

    # -- claims

    async def claim(self, claim: Claim, wait_s: float | None = None) -> Grant:
        """A ready sandbox. The same idempotency key gives the same sandbox.

        Waits in line for a place, at most wait_s seconds (none: the policy's).

        Raises:
            NotFound: no such task.
            InvalidSpec: a limit or the task's environment cannot be honoured.
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
        live = self._live.get(known.sandbox_id)
        if live is None or live.sandbox.state is SandboxState.ENDED:
            known = live.sandbox if live else known
            raise Conflict(
                f"sandbox {known.sandbox_id} of key {claim.idempotency_key!r} has ended "
                f"({known.end_reason}: {known.end_detail}); use a new key"
            )
        return self._grant(live)

    async def _claim(self, claim: Claim, wait_s: float) -> Grant:
        began = self._clock.monotonic()
        environment = await self._environment(claim.task_digest)
        limits = environment.limits.or_default(self._policy.default_limits).lowered_by(claim.limits)
        image = (await self._prepare(environment)).image
        asked = self._clock.monotonic()
        await self._admission.acquire(wait_s)
        metrics.QUEUE_SECONDS.labels(self._runtime.name).observe(self._clock.monotonic() - asked)
        metrics.ACTIVE.labels(self._runtime.name).inc()
        try:
            live = await self._start(claim, image, limits)
        except BaseException:
            self._free_place()
            metrics.STARTS.labels(self._runtime.name, "failed").inc()
            raise
        metrics.STARTS.labels(self._runtime.name, "ok").inc()
        metrics.START_SECONDS.labels(self._runtime.name).observe(self._clock.monotonic() - began)
        return self._grant(live)

    def _free_place(self) -> None:
        self._admission.release()
        metrics.ACTIVE.labels(self._runtime.name).dec()

    async def _start(self, claim: Claim, image: Image, limits: Limits) -> Live:
        sandbox = self._record_of(claim, limits)
        await self._records.insert(sandbox)
        self._publish(sandbox)
        try:
            running = await self._runtime.launch(sandbox.sandbox_id, image, limits)
        except (LongshoreError, asyncio.CancelledError) as error:
            detail = error.message if isinstance(error, LongshoreError) else "the claim was cancelled"
            await self._record(sandbox.ended(EndReason.START_FAILED, detail, self._clock.now_ms()))
            raise
        ready = sandbox.ready(image.digest, running.enforcement, self._expiry(claim.ttl_s))
        execs = ExecTable(running, self._clock, metrics.EXECS.labels(self._runtime.name).inc)
        live = Live(ready, running, secrets.token_urlsafe(32), execs)
        self._live[sandbox.sandbox_id] = live
        running.ended.add_done_callback(lambda _: self._on_ended(live))
        await self._record(ready)
        return live

    def _record_of(self, claim: Claim, limits: Limits) -> Sandbox:
        return Sandbox(
            sandbox_id=new_id("sandbox"),
            state=SandboxState.STARTING,
            task_digest=claim.task_digest,
            run_id=claim.run_id,
            attempt_id=claim.attempt_id,
            created_at_ms=self._clock.now_ms(),
            expires_at_ms=self._expiry(claim.ttl_s),
            limits=limits,
            runtime=self._runtime.name,
            owner=self._policy.owner,
            idempotency_key=claim.idempotency_key,
        )

    def _expiry(self, ttl_s: float) -> int:
        return self._clock.now_ms() + int(1000 * (ttl_s or self._policy.default_ttl_s))

    def _grant(self, live: Live) -> Grant:
        token = f"{live.sandbox.sandbox_id}.{live.secret}"
        return Grant(live.sandbox, self._policy.agent_address, token)

    # -- ends

    def _on_ended(self, live: Live) -> None:
        if live.closing is None:
            end = live.running.ended.result()
            # At once, so that whoever sees a command end can ask why.
            live.sandbox = live.sandbox.ended(end.reason, end.detail, self._clock.now_ms())
            live.closing = self._spawn(self._close(live))

    async def _close(self, live: Live) -> None:
        self._free_place()
        metrics.ENDS.labels(self._runtime.name, live.sandbox.end_reason.value).inc()
        await self._record(live.sandbox)
        await live.execs.close()
        del self._live[live.sandbox.sandbox_id]

    async def _end(self, live: Live, reason: EndReason, detail: str) -> None:
        await live.running.stop(SandboxEnd(reason, detail))
        self._on_ended(live)
        assert live.closing is not None
        await asyncio.shield(live.closing)

    async def _record(self, sandbox: Sandbox) -> None:
        await self._records.update(sandbox)
        self._publish(sandbox)

    # -- what callers ask

    async def renew(self, sandbox_id: str, ttl_s: float) -> int:
        """Moves the lease's end to ttl_s seconds from now; gives it in ms. Raises NotFound, Conflict, InvalidSpec."""
        if not 0 <= ttl_s <= _MAX_TTL_S:
            raise InvalidSpec(f"ttl_s is {ttl_s}; it must be 0 to {_MAX_TTL_S:.0f}", field="ttl_s")
        live = self._live.get(sandbox_id)
        if live is None or live.sandbox.state is SandboxState.ENDED:
            sandbox = await self.get(sandbox_id)
            raise Conflict(f"sandbox {sandbox_id} has ended ({sandbox.end_reason}: {sandbox.end_detail})")
        live.sandbox = replace(live.sandbox, expires_at_ms=self._expiry(ttl_s))
        await self._records.update(live.sandbox)
        return live.sandbox.expires_at_ms

    async def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox; an ended one is no error. Raises NotFound."""
        live = self._live.get(sandbox_id)
        if live is None:
            await self.get(sandbox_id)
            return
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

    async def watch(self, run_id: str) -> AsyncIterator[Sandbox]:
        """State changes from now on. Raises Unavailable when the reader is too slow."""
        subscriber = _Subscriber(run_id)
        self._subscribers.append(subscriber)
        try:
            while True:
                yield await subscriber.queue.get()
                if subscriber.lost:
                    raise Unavailable("the watcher fell behind; list the sandboxes and watch again")
        finally:
            self._subscribers.remove(subscriber)

    def _publish(self, sandbox: Sandbox) -> None:
        for subscriber in self._subscribers:
            if subscriber.run_id in ("", sandbox.run_id):
                try:
                    subscriber.queue.put_nowait(sandbox)
                except asyncio.QueueFull:
                    subscriber.lost = True

    def by_token(self, token: str) -> Live:
        """The running sandbox of an agent token, compared in constant time.

        Raises:
            PermissionDenied: not a token of a running sandbox.
        """
        sandbox_id, _, secret = token.partition(".")
        live = self._live.get(sandbox_id)
        expected = live.secret if live else secrets.token_urlsafe(32)
        same = hmac.compare_digest(secret.encode(), expected.encode())
        if live is None or not same:
            raise PermissionDenied("the token belongs to no running sandbox; claim one, or ask GetSandbox why it ended")
        return live
