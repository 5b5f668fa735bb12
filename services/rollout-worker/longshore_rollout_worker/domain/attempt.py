"""The life of one leased attempt: claim and open, run the harness, verify, seal or report, and always clean up.

Invariants: every sandbox that was granted is deleted and every session opened is closed, whatever happens in between,
cancellation included; after the lease is known to be lost nothing is written.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from longshore_common import scope, tracing
from longshore_common.clock import Clock
from longshore_common.digests import digest
from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.log import get_logger
from longshore_common.patience import Patience
from longshore_common.retry import retry
from longshore_rollout_worker.domain.budget import AgentLimits
from longshore_rollout_worker.domain.failures import failure_of, means_lease_lost, means_outcome_is_fixed
from longshore_rollout_worker.domain.harness import Harness, HarnessContext, HarnessRegistry, HarnessResult
from longshore_rollout_worker.domain.model_calls import Model
from longshore_rollout_worker.domain.ports import (
    Catalog,
    ClaimedSandbox,
    Controller,
    Gateway,
    Graded,
    Identity,
    Lease,
    ModelTransport,
    NotGraded,
    Scheduler,
    Seal,
    Session,
    TaskInfo,
    Trajectory,
    Verifier,
)
from longshore_rollout_worker.domain.vocabulary import (
    AttemptEnd,
    AttemptFailure,
    Failure,
    LeaseLost,
    OutcomeFixed,
    Stage,
    Termination,
)

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    """The other services that an attempt touches."""

    controller: Controller
    scheduler: Scheduler
    gateway: Gateway
    catalog: Catalog
    verifier: Verifier
    trajectory: Trajectory
    models: ModelTransport


@dataclass(frozen=True)
class AttemptSettings:
    """Times in seconds; see settings.Settings for the reasons."""

    worker_id: str
    sandbox_ttl_s: float
    session_slack_s: float
    model_patience_s: float
    service_patience_s: float
    regrade: bool


@dataclass(frozen=True)
class Phase:
    """Seconds that a part of an attempt took; for metrics."""

    name: str
    seconds: float


@dataclass
class _Grants:
    """What was asked for in parallel; each must be given back if it was granted."""

    claim: "asyncio.Task[ClaimedSandbox]"
    opened: "asyncio.Task[Session]"
    task: "asyncio.Task[TaskInfo]"
    session_closed: bool = False


@dataclass(frozen=True)
class _Held:
    sandbox: ClaimedSandbox
    session: Session
    task: TaskInfo


class AttemptRunner:
    """Runs attempts; holds no state between them but the cleanups that are still going on."""

    def __init__(
        self,
        services: Services,
        harnesses: HarnessRegistry,
        clock: Clock,
        settings: AttemptSettings,
        observe: Callable[[Phase], None] = lambda _: None,
    ) -> None:
        self._services, self._harnesses, self._clock, self._settings = services, harnesses, clock, settings
        self._observe = observe
        # Not late answers: those calls have waited long enough.
        self._patiently = Patience(clock, settings.service_patience_s, Unavailable)
        self._cleanups: set[asyncio.Task[None]] = set()

    async def run(self, lease: Lease, on_sealed: Callable[[], None] = lambda: None) -> AttemptEnd:
        """Runs one attempt to its end. Only cancellation is raised; a failure is reported to the controller.

        on_sealed: called once the outcome stands; from then on nothing can take the attempt away.
        """
        services, ttl_s = self._services, lease.agent_timeout_s + self._settings.session_slack_s
        grants = _Grants(
            self._asked("claim", lambda: services.scheduler.claim(lease, self._settings.sandbox_ttl_s)),
            self._asked("open session", lambda: services.gateway.open(lease, ttl_s)),
            self._asked("read task", lambda: services.catalog.task(lease.task_digest)),
        )
        try:
            return await self._run(lease, grants, on_sealed)
        except AttemptFailure as failure:
            return await self._report(lease, failure)
        except OutcomeFixed as fixed:
            log.info("attempt has an outcome already", attempt=lease.key.attempt_id, reason=str(fixed))
            await self._complete(lease)
            return AttemptEnd.SUPERSEDED
        except LeaseLost as lost:
            log.info("lease lost", attempt=lease.key.attempt_id, epoch=lease.key.epoch, reason=str(lost))
            return AttemptEnd.LOST
        finally:
            await self._clean_up(grants)

    def _asked(self, what: str, call: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        return asyncio.create_task(self._patiently(what, call))

    async def cleaned(self) -> None:
        """Returns when no cleanup is going on."""
        while self._cleanups:
            await asyncio.gather(*self._cleanups, return_exceptions=True)

    async def _run(self, lease: Lease, grants: _Grants, on_sealed: Callable[[], None]) -> AttemptEnd:
        harness = self._harnesses.get(lease.harness_name, lease.harness_config_json)
        with self._phase("start"):
            held = await self._acquire(grants)
        scope.bind(sandbox=held.sandbox.sandbox_id)
        async with self._kept_alive(held.sandbox.sandbox_id):
            with self._phase("agent"):
                result = await self._agent(lease, harness, held)
            await self._check_capture(lease, held.session, grants)
            with self._phase("verify"):
                grade = await self._verify(lease, held.sandbox)
        if isinstance(grade, NotGraded):
            raise AttemptFailure(grade.failure, grade.evidence)
        await self._seal(lease, harness, held, result, grade)
        on_sealed()
        await self._complete(lease)
        return AttemptEnd.SCORED

    async def _acquire(self, grants: _Grants) -> _Held:
        claim, opened, task = grants.claim, grants.opened, grants.task
        await asyncio.wait([claim, opened, task], return_when=asyncio.FIRST_EXCEPTION)
        # In this order, so that the same faults always give the same failure.
        stages: list[tuple[Stage, asyncio.Task[Any]]] = [
            (Stage.CLAIM, claim),
            (Stage.SESSION, opened),
            (Stage.SETUP, task),
        ]
        for stage, pending in stages:
            if pending.done():
                await _translated(stage, pending)
        return _Held(claim.result(), opened.result(), task.result())

    async def _agent(self, lease: Lease, harness: Harness, held: _Held) -> HarnessResult:
        limits = AgentLimits(lease.max_turns, lease.max_tokens, lease.agent_timeout_s)
        model = Model(self._services.models, held.session, self._clock, self._settings.model_patience_s)
        context = HarnessContext(lease.instruction, model, held.sandbox.agent, held.task, limits, self._clock)
        started = self._clock.monotonic()
        try:
            return await harness.run(context)
        except LongshoreError as error:
            failure = await self._sandbox_failure(held.sandbox, Stage.COMMAND, error)
            if failure.failure is not Failure.SANDBOX_OOM:
                raise failure from error
            # An agent can eat the memory on purpose: whose fault it is, the verifier finds out in fresh conditions.
            return HarnessResult(Termination.AGENT_ERROR, 0, self._clock.monotonic() - started)

    async def _sandbox_failure(self, sandbox: ClaimedSandbox, stage: Stage, error: LongshoreError) -> AttemptFailure:
        try:
            end = await self._services.scheduler.look_up(sandbox.sandbox_id)
        except LongshoreError as lookup:
            return AttemptFailure(failure_of(stage, error.code), f"{error.message}; {lookup.message}")
        how = f"; the sandbox ended: {end.reason} {end.detail}".rstrip() if end.reason else ""
        return AttemptFailure(failure_of(stage, error.code, end.reason), f"{error.message}{how}")

    async def _check_capture(self, lease: Lease, session: Session, grants: _Grants) -> None:
        """Ends the session; an attempt to train on whose capture has holes is failed before time goes into grading."""
        closed = self._patiently("close session", lambda: self._services.gateway.close(session.session_id))
        use = await _translated(Stage.SESSION, closed)
        grants.session_closed = True
        if lease.trains and not use.capture_complete:
            raise AttemptFailure(Failure.CAPTURE_INCOMPLETE, f"session {session.session_id}: {use.turns} turns")

    async def _verify(self, lease: Lease, sandbox: ClaimedSandbox) -> Graded | NotGraded:
        regrade = self._settings.regrade and lease.regrade
        verified = self._patiently("verify", lambda: self._services.verifier.verify(lease, sandbox, regrade))
        return await _translated(Stage.VERIFY, verified)

    async def _seal(self, lease: Lease, harness: Harness, held: _Held, result: HarnessResult, grade: Graded) -> None:
        termination = Termination.AGENT_BROKE_VERIFIER if grade.agent_broke_verifier else result.termination
        seal = Seal(
            key=lease.key,
            reward=grade.reward,
            record=grade.record,
            termination=termination,
            identity=identity_of(lease, harness, held.sandbox, held.session),
            start_version=held.session.start_version,
            agent_s=result.agent_s,
            verifier_s=grade.seconds,
            sandbox_id=held.sandbox.sandbox_id,
        )
        await _translated(Stage.SEAL, self._patiently("seal", lambda: self._services.trajectory.seal(seal)))

    async def _complete(self, lease: Lease) -> None:
        try:
            await retry(lambda: self._services.controller.complete(self._settings.worker_id, lease.key, None))
        except LongshoreError as error:
            # The outcome is sealed; the controller learns of it from the store, and the lease runs out.
            log.warning("lease not freed", attempt=lease.key.attempt_id, error=error.message)

    async def _report(self, lease: Lease, failure: AttemptFailure) -> AttemptEnd:
        reason = (failure.failure, failure.evidence)
        try:
            again = await retry(
                lambda: self._services.controller.complete(self._settings.worker_id, lease.key, reason), attempts=6
            )
        except LongshoreError as error:
            log.warning("failure not reported", attempt=lease.key.attempt_id, error=error.message)
            return AttemptEnd.LOST
        log.info(
            "attempt failed", attempt=lease.key.attempt_id, epoch=lease.key.epoch, failure=failure.failure,
            evidence=failure.evidence[:300], will_retry=again,
        )  # fmt: skip
        return AttemptEnd.FAILED

    @contextlib.asynccontextmanager
    async def _kept_alive(self, sandbox_id: str) -> AsyncIterator[None]:
        keeper = asyncio.create_task(self._renew(sandbox_id))
        try:
            yield
        finally:
            keeper.cancel()

    async def _renew(self, sandbox_id: str) -> None:
        while True:
            await self._clock.sleep(self._settings.sandbox_ttl_s / 3)
            try:
                await self._services.scheduler.renew(sandbox_id, self._settings.sandbox_ttl_s)
            except LongshoreError as error:
                # If it is gone, the next command says so; if the scheduler is away, there is time for one more try.
                log.warning("sandbox not renewed", sandbox=sandbox_id, error=error.message)

    async def _clean_up(self, grants: _Grants) -> None:
        cleanup = asyncio.create_task(self._release(grants))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        await asyncio.shield(cleanup)

    async def _release(self, grants: _Grants) -> None:
        """Waits for grants that are on their way: what was granted must be given back."""
        grants.task.cancel()
        await asyncio.gather(
            self._given_back(grants.claim, lambda held: self._services.scheduler.delete(held.sandbox_id)),
            self._close_session(grants),
            asyncio.wait([grants.task]),
        )

    async def _close_session(self, grants: _Grants) -> None:
        if not grants.session_closed:
            await self._given_back(grants.opened, lambda held: self._services.gateway.close(held.session_id))

    async def _given_back(self, grant: "asyncio.Task[T]", give: Callable[[T], Awaitable[object]]) -> None:
        try:
            held = await grant
            await retry(lambda: give(held))
        except LongshoreError as error:
            # Not granted, or not reachable: its time to live ends it.
            log.debug("nothing given back", error=error.message)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = self._clock.monotonic()
        try:
            with tracing.span(name):
                yield
        finally:
            self._observe(Phase(name, self._clock.monotonic() - started))


async def _translated(stage: Stage, call: Awaitable[T]) -> T:
    """The call's result; its error as AttemptFailure, LeaseLost or OutcomeFixed."""
    try:
        return await call
    except LongshoreError as error:
        if means_lease_lost(stage, error.code, error.details):
            raise LeaseLost(error.message) from error
        if means_outcome_is_fixed(stage, error.code, error.details):
            raise OutcomeFixed(error.message) from error
        reason = error.details.get("end_reason", "")
        raise AttemptFailure(failure_of(stage, error.code, reason), f"{stage}: {error.message}") from error


def identity_of(lease: Lease, harness: Harness, sandbox: ClaimedSandbox, session: Session) -> Identity:
    """What the attempt was made of."""
    return Identity(
        task_digest=lease.task_digest,
        harness_name=harness.name,
        harness_version=harness.version,
        harness_config_digest=harness.config_digest,
        base_digest=session.base_digest,
        tokenizer_digest=session.tokenizer_digest,
        template_digest=session.template_digest,
        sampling=lease.sampling,
        policy_alias=lease.policy_alias,
        image_digest=sandbox.image_digest,
        limits_digest=digest(dict(sandbox.limits)),
        verifier_digest=lease.verifier_digest,
    )
