"""Sessions: who may call, as which version, with which sampling, within which limits; and the trace they write."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, InvalidSpec, LongshoreError, NotFound, PermissionDenied
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_inference_gateway.domain.models import (
    ModelIdentity,
    PolicyVersion,
    Reason,
    Sampling,
    SessionRecord,
    SessionTotals,
)
from longshore_inference_gateway.domain.policies import Alias, Policies
from longshore_inference_gateway.domain.ports import GatewayStore
from longshore_inference_gateway.domain.trace import Trace

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a worker asks for. ttl_s: seconds until the token stops working."""

    run_id: str
    attempt_id: str
    lease_epoch: int
    alias: str
    pinned_version: int | None
    sampling: Sampling
    max_session_tokens: int
    ttl_s: float


@dataclass(slots=True)
class Session:
    """An open session in memory."""

    record: SessionRecord
    alias: Alias
    policy: PolicyVersion
    trace: Trace
    totals: SessionTotals = field(default_factory=SessionTotals)
    engine_id: str = ""
    """Where its prefix is cached."""
    fenced: bool = False

    @property
    def identity(self) -> ModelIdentity:
        """What the pinned policy is made of."""
        return self.policy.identity


async def _nothing_to_recover(_session: Session) -> None:
    return None


def hash_token(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).digest()


class Sessions:
    """All open sessions. A token is found by its hash, so neither time nor a stolen database reveals it."""

    def __init__(self, store: GatewayStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_hash: dict[bytes, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._traces: dict[tuple[str, int], Trace] = {}
        self._epochs: dict[str, int] = {}
        self._closing: dict[str, asyncio.Task[SessionTotals]] = {}
        self.on_close: Callable[[str], None] = lambda _alias: None
        """Called with the alias after a session ended."""
        self.recover: Callable[[Session], Awaitable[None]] = _nothing_to_recover
        """Reads a restored session's trace back."""

    def __len__(self) -> int:
        return len(self._by_id)

    def in_use(self, alias: str) -> set[int]:
        """Versions that open sessions of an alias are pinned to; fenced sessions use nothing."""
        return {s.record.version for s in self._by_id.values() if s.record.alias == alias and not s.fenced}

    async def open(self, request: OpenRequest, policies: Policies) -> tuple[Session, str]:
        """A new session and its token.

        Raises:
            Conflict: the attempt has a newer lease epoch, or the version is not served any more.
            NotFound, Unavailable: see Policies.serving.
            InvalidSpec: sampling or limits make no sense.
        """
        _check(request)
        alias, policy, codec, _ = policies.serving(request.alias, request.pinned_version)
        newest = self._epochs.get(request.attempt_id, 0)
        if request.lease_epoch < newest:
            raise Conflict(
                f"attempt {request.attempt_id!r} is at lease epoch {newest}; epoch {request.lease_epoch} is over",
                details={"reason": Reason.SESSION_FENCED},
            )
        token = secrets.token_urlsafe(32)
        now = self._clock.now_ms()
        record = SessionRecord(
            session_id=new_id("session"),
            token_hash=hash_token(token),
            run_id=request.run_id,
            attempt_id=request.attempt_id,
            lease_epoch=request.lease_epoch,
            alias=request.alias,
            version=policy.version,
            sampling=request.sampling,
            max_session_tokens=request.max_session_tokens,
            opened_at_ms=now,
            expires_at_ms=now + int(1000 * request.ttl_s),
        )
        shared = self._traces.get((request.attempt_id, request.lease_epoch))
        session = self._keep(Session(record, alias, policy, shared or Trace(codec, recovered=True)))
        try:
            seen_before = await self._store.add_session(record)
        except BaseException:
            self._drop(session)
            raise
        if seen_before and shared is None:
            session.trace.recovered = False
        return session, token

    def authenticate(self, token: str) -> Session:
        """The session of a token.

        Raises:
            PermissionDenied: unknown, closed or expired (details["reason"] = invalid_token).
            Conflict: the attempt was leased again (details["reason"] = session_fenced).
        """
        session = self._by_hash.get(hash_token(token))
        if session is None or session.record.expires_at_ms <= self._clock.now_ms():
            raise PermissionDenied(
                "the API key is unknown, closed or expired; open a session", details={"reason": Reason.INVALID_TOKEN}
            )
        if session.fenced:
            raise Conflict(
                f"lease epoch {session.record.lease_epoch} of attempt {session.record.attempt_id!r} is over",
                details={"reason": Reason.SESSION_FENCED},
            )
        return session

    async def close(self, session_id: str) -> SessionTotals:
        """Ends a session: running calls are cut off and captured. Again: the same totals.

        Raises:
            NotFound: no such session.
        """
        task = self._closing.get(session_id)
        session = self._by_id.get(session_id)
        if task is None and session is not None:
            task = self._closing[session_id] = asyncio.create_task(self._close(session))
            task.add_done_callback(lambda _: self._closing.pop(session_id, None))
        if task is not None:
            return await asyncio.shield(task)
        record = await self._store.find_session(session_id)
        if record is None:
            raise NotFound(f"no session {session_id!r}")
        return record.totals or SessionTotals()

    async def _close(self, session: Session) -> SessionTotals:
        self._by_hash.pop(session.record.token_hash, None)
        await session.trace.cancel_calls(session.record.session_id)
        await self._settle(session)
        closed = replace(session.record, closed_at_ms=self._clock.now_ms(), totals=session.totals)
        await self._store.close_session(closed)
        self._drop(session)
        self.on_close(session.record.alias)
        return session.totals

    async def _settle(self, session: Session) -> None:
        try:
            await self.recover(session)
        except LongshoreError as error:
            log.error("trace not read back", session=session.record.session_id, error=error.message)
            session.totals.capture_complete = False
        if session.trace.unsaved:
            session.totals.capture_complete = False

    async def close_expired(self) -> int:
        """Ends sessions past their time; gives their number."""
        now = self._clock.now_ms()
        expired = [s for s in self._by_id.values() if s.record.expires_at_ms <= now]
        for session in expired:
            await self.close(session.record.session_id)
        return len(expired)

    async def close_alias(self, alias: str) -> None:
        """Ends all sessions of an alias."""
        for session in [s for s in self._by_id.values() if s.record.alias == alias]:
            await self.close(session.record.session_id)

    async def restore(self, policies: Policies) -> None:
        """After a restart: open sessions go on. Their traces are read from the trajectory store at the first call."""
        for record in await self._store.open_sessions():
            alias = policies.aliases.get(record.alias)
            policy = alias.versions.get(record.version) if alias is not None else None
            if alias is None or policy is None or alias.codec is None:
                await self._store.close_session(
                    replace(record, closed_at_ms=self._clock.now_ms(), totals=SessionTotals())
                )
                continue
            key = (record.attempt_id, record.lease_epoch)
            trace = self._traces.get(key) or Trace(alias.codec, recovered=False)
            self._keep(Session(record, alias, policy, trace))

    def _keep(self, session: Session) -> Session:
        record = session.record
        newest = max(self._epochs.get(record.attempt_id, 0), record.lease_epoch)
        self._epochs[record.attempt_id] = newest
        self._traces[(record.attempt_id, record.lease_epoch)] = session.trace
        self._by_hash[record.token_hash] = session
        self._by_id[record.session_id] = session
        for other in self._by_id.values():
            if other.record.attempt_id == record.attempt_id and other.record.lease_epoch < newest:
                other.fenced = True
        return session

    def _drop(self, session: Session) -> None:
        record = session.record
        self._by_hash.pop(record.token_hash, None)
        self._by_id.pop(record.session_id, None)
        if not any(other.trace is session.trace for other in self._by_id.values()):
            self._traces.pop((record.attempt_id, record.lease_epoch), None)


def _check(request: OpenRequest) -> None:
    if not request.attempt_id:
        raise InvalidSpec("attempt_id is empty", field="attempt_id")
    if request.lease_epoch < 1:
        raise InvalidSpec(f"lease_epoch is {request.lease_epoch}; epochs start at 1", field="lease_epoch")
    if request.ttl_s <= 0:
        raise InvalidSpec(f"ttl_s is {request.ttl_s:g}; it must be positive", field="ttl_s")
    sampling = request.sampling
    if not 0 <= sampling.temperature <= 10:
        raise InvalidSpec(f"temperature is {sampling.temperature:g}; use 0 to 10", field="sampling.temperature")
    if not 0 < sampling.top_p <= 1:
        raise InvalidSpec(f"top_p is {sampling.top_p:g}; use more than 0, at most 1", field="sampling.top_p")
    if sampling.top_k < 0 or sampling.max_tokens < 0 or request.max_session_tokens < 0:
        raise InvalidSpec("top_k, max_tokens and max_session_tokens must not be negative", field="sampling")
