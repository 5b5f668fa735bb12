"""A chat completion, from messages to a captured turn."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longshore_common.chatml import ParsedMessage
from longshore_common.clock import Clock
from longshore_common.errors import Conflict, DeadlineExceeded, Internal, LongshoreError, Unavailable
from longshore_common.ids import new_id
from longshore_common.log import get_logger
from longshore_inference_gateway.domain import capture, openai_chat
from longshore_inference_gateway.domain.engine_pool import EnginePool
from longshore_inference_gateway.domain.engines import ServingSet
from longshore_inference_gateway.domain.lineage import Prompt
from longshore_inference_gateway.domain.models import (
    FinishReason,
    Generated,
    GenerateRequest,
    Reason,
    Sampling,
    Turn,
    TurnStatus,
)
from longshore_inference_gateway.domain.observer import ChatObserver
from longshore_inference_gateway.domain.openai_chat import ChatRequest, Envelope
from longshore_inference_gateway.domain.ports import EngineClient, TurnSink
from longshore_inference_gateway.domain.sessions import Session
from longshore_inference_gateway.domain.text_stream import TextStream
from longshore_inference_gateway.domain.trace import Call

log = get_logger(__name__)

# Above this, rendering and compression would hold up the event loop for milliseconds.
_LARGE_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """Seconds that a call may wait for an engine, and take there."""

    queue_timeout_s: float
    engine_timeout_s: float


@dataclass(slots=True)
class _Progress:
    """What is known of a call so far; an error turn is written from it."""

    session: Session
    request: ChatRequest
    body: bytes
    received_at_ms: int
    started: float
    prompt: Prompt
    sampling: Sampling
    envelope: Envelope
    answer: Generated = field(default_factory=Generated)
    text: TextStream | None = None
    engine: str = ""
    first_token_at_ms: int = 0
    engine_s: float = 0.0
    queued_s: float = 0.0


class Chat:
    """Serves chat completions of sessions."""

    def __init__(
        self,
        *,
        sink: TurnSink,
        clock: Clock,
        limits: ChatLimits,
        observer: ChatObserver,
        recover: Callable[[Session], Awaitable[None]],
        compress: Callable[[bytes], bytes],
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._recover = recover
        self._compress = compress

    def call(self, session: Session, body: bytes, marked_retry: bool) -> Call:
        """Starts a call, or joins the one that this request repeats.

        Raises:
            InvalidSpec: the request cannot be served; nothing is captured.
        """
        key = hashlib.blake2b(body, digest_size=16).digest()
        call = session.trace.joinable(key, marked_retry)
        if call is not None:
            self._observer.coalesced()
            if call.error is not None and call.resume is not None:
                call.reopen()
                call.task = asyncio.create_task(self._guarded(session, call, call.resume()))
            return call
        request = openai_chat.parse_request(body)
        call = Call(session.record.session_id, request.stream)
        session.trace.add_call(key, call)
        call.task = asyncio.create_task(self._guarded(session, call, self._run(session, request, body, call)))
        return call

    async def _guarded(self, session: Session, call: Call, work: Awaitable[None]) -> None:
        try:
            await work
        except LongshoreError as error:
            call.finish(error)
        except asyncio.CancelledError:
            call.finish(Unavailable("the session was closed during the call", retryable=False))
            raise
        except Exception as error:
            # Edge of a task of its own: without this its client would wait for ever.
            log.error("call failed", session=session.record.session_id, exc_info=True)
            call.finish(Internal(f"unexpected {type(error).__name__} in the gateway: {error}"))

    async def _run(self, session: Session, request: ChatRequest, body: bytes, call: Call) -> None:
        received, started = self._clock.now_ms(), self._clock.monotonic()
        trace = session.trace
        if not trace.recovered:
            await self._recover(session)
        if len(body) > _LARGE_BODY:
            prompt = await asyncio.to_thread(trace.lineage.prompt, request.messages, request.tools)
        else:
            prompt = trace.lineage.prompt(request.messages, request.tools)
        engines = _serving_engines(session)
        sampling = self._sampling(session, len(prompt.ids), engines.context_length)
        envelope = Envelope(new_id("chatcmpl"), received // 1000, session.record.alias)
        progress = _Progress(session, request, body, received, started, prompt, sampling, envelope)
        try:
            await self._generate(progress, call, engines.pool)
        except LongshoreError as error:
            await self._capture_error(progress, FinishReason.ERROR, error.message)
            raise
        except asyncio.CancelledError:
            await self._capture_error(progress, FinishReason.ABORT, "the session was closed during the call")
            raise
        finally:
            trace.reserved_tokens -= sampling.max_tokens
        await self._answer(progress, call)

    @staticmethod
    def _sampling(session: Session, prompt_tokens: int, context: int) -> Sampling:
        trace, record = session.trace, session.record
        rest = None
        if record.max_session_tokens:
            rest = record.max_session_tokens - trace.sampled_tokens - trace.reserved_tokens
        sampling = capture.call_sampling(record.sampling, trace.calls_started, prompt_tokens, context, rest)
        trace.calls_started += 1
        trace.reserved_tokens += sampling.max_tokens
        return sampling

    async def _generate(self, progress: _Progress, call: Call, pool: EnginePool) -> None:
        session = progress.session
        admission = await pool.acquire(session.engine_id, self._limits.queue_timeout_s)
        progress.queued_s = admission.queued_s
        session.totals.queued_s += admission.queued_s
        call.queued_ms = round(1000 * admission.queued_s)
        session.engine_id = progress.engine = admission.handle.engine_id
        at_engine = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._limits.engine_timeout_s):
                await self._call_engine(progress, call, admission.handle.client)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"engine {progress.engine} took more than {self._limits.engine_timeout_s:g} s",
                details={"reason": Reason.ENGINE_UNAVAILABLE},
            ) from error
        except Unavailable:
            pool.doubt(admission)
            raise
        finally:
            pool.release(admission)
            progress.engine_s = self._clock.monotonic() - at_engine

    async def _call_engine(self, progress: _Progress, call: Call, client: EngineClient) -> None:
        session = progress.session
        request = GenerateRequest(
            session.policy.served_name, progress.prompt.ids, progress.sampling, session.trace.codec.stop_ids
        )
        if not call.stream:
            progress.answer = await client.generate(request)
            progress.first_token_at_ms = self._clock.now_ms()
            return
        progress.text = TextStream(session.trace.codec, progress.request.parse_tools)
        async for piece in client.stream(request):
            if not progress.first_token_at_ms:
                progress.first_token_at_ms = self._clock.now_ms()
                call.emit(progress.envelope.chunk({"role": "assistant", "content": ""}))
            _merge(progress.answer, piece)
            delta = progress.text.push(piece.token_ids)
            if delta:
                call.emit(progress.envelope.chunk({"content": delta}))

    async def _answer(self, progress: _Progress, call: Call) -> None:
        codec, answer = progress.session.trace.codec, progress.answer
        if progress.request.parse_tools:
            parsed = codec.parse(answer.token_ids)
        else:
            parsed = ParsedMessage(codec.decode(answer.token_ids), ())
        message = openai_chat.assistant_message(parsed, [new_id("call") for _ in parsed.tool_calls])
        finish = capture.finish_of(answer.finish_reason, bool(parsed.tool_calls))
        usage = openai_chat.usage_of(len(progress.prompt.ids), len(answer.token_ids))
        body = progress.envelope.completion(message, finish, usage)
        turn = await self._turn(progress, finish, body)

        async def store_and_end() -> None:
            await self._store(progress, turn, message)
            call.resume = None
            if call.stream:
                _emit_end(progress, call, message, parsed, finish, usage)
            call.body = body
            call.finish()

        call.resume = store_and_end
        await store_and_end()

    async def _turn(self, progress: _Progress, finish: FinishReason, response: bytes, error: str = "") -> Turn:
        session, answer = progress.session, progress.answer
        name = session.policy.served_name
        fault = error or capture.capture_fault(answer, name, len(progress.prompt.ids))
        versions = []
        if not error:
            try:
                versions = capture.spans_of(answer, session.policy.version)
            except ValueError as problem:
                fault = fault or f"unknown weights version: {problem}"
        tools = json.dumps(progress.request.tools).encode() if progress.request.tools else b""
        reason = fault or capture.untrainable_by_sampling(progress.sampling)
        large = len(progress.body) > _LARGE_BODY
        blobs = (progress.body, response, tools)
        packed = await asyncio.to_thread(self._pack, blobs) if large else self._pack(blobs)
        return Turn(
            attempt_id=session.record.attempt_id,
            lease_epoch=session.record.lease_epoch,
            turn=session.trace.take_turn(),
            parent_turn=progress.prompt.parent_turn,
            prompt_ids=progress.prompt.ids,
            completion_ids=answer.token_ids,
            logprobs=answer.logprobs,
            versions=versions,
            finish_reason=finish,
            sampling=progress.sampling,
            identity=session.identity,
            engine=progress.engine,
            dialect=openai_chat.DIALECT,
            request=packed[0],
            response=packed[1],
            tools=packed[2],
            received_at_ms=progress.received_at_ms,
            first_token_at_ms=progress.first_token_at_ms,
            done_at_ms=self._clock.now_ms(),
            status=TurnStatus.ERROR if error else capture.status_of(fault),
            trainable=not reason,
            untrainable_reason=reason,
            served_name=answer.model or name,
        )

    def _pack(self, blobs: tuple[bytes, ...]) -> list[bytes]:
        return [self._compress(blob) if blob else b"" for blob in blobs]

    async def _store(self, progress: _Progress, turn: Turn, message: Mapping[str, Any]) -> None:
        session = progress.session
        await self._append(session, turn)
        totals, trace = session.totals, session.trace
        totals.turns += 1
        totals.prompt_tokens += len(turn.prompt_ids)
        totals.completion_tokens += len(turn.completion_ids)
        trace.sampled_tokens += len(turn.completion_ids)
        if turn.status is TurnStatus.OK:
            trace.lineage.record(progress.prompt, turn.turn, turn.completion_ids, message)
        else:
            totals.capture_complete = False
            log.warning("turn is not token-exact", attempt=turn.attempt_id, reason=turn.untrainable_reason)
        total_s = self._clock.monotonic() - progress.started
        self._observer.answered(turn, total_s=total_s, engine_s=progress.engine_s, queued_s=progress.queued_s)

    async def _append(self, session: Session, turn: Turn) -> None:
        try:
            await self._sink.append(turn)
        except Conflict as error:
            session.fenced = True
            raise Conflict(error.message, details={**error.details, "reason": Reason.SESSION_FENCED}) from error
        except LongshoreError as error:
            session.trace.unsaved.add(turn.turn)
            raise Unavailable(
                f"the turn could not be stored, so it is not answered; send it again: {error.message}",
                details={"reason": Reason.CAPTURE_FAILED},
            ) from error
        session.trace.unsaved.discard(turn.turn)

    async def _capture_error(self, progress: _Progress, finish: FinishReason, why: str) -> None:
        """Stores an upstream error as a turn. The client must see that error, so a failure here is only logged."""
        response = json.dumps({"error": {"message": why}}).encode()
        # Half an answer was not delivered: its tokens are no trace.
        progress.answer = Generated()
        turn = await self._turn(progress, finish, response, why)
        try:
            await self._sink.append(turn)
        except LongshoreError as error:
            log.error("error turn not stored", attempt=turn.attempt_id, turn=turn.turn, error=error.message)
        progress.session.totals.turns += 1
        self._observer.failed(turn)


def _serving_engines(session: Session) -> ServingSet:
    engines = session.alias.engines
    if engines is None or engines.context_length == 0:
        raise Unavailable("the engines are starting; try again", details={"reason": Reason.ENGINE_UNAVAILABLE})
    return engines


def _merge(answer: Generated, piece: Generated) -> None:
    answer.token_ids.extend(piece.token_ids)
    answer.logprobs.extend(piece.logprobs)
    answer.model = piece.model or answer.model
    answer.finish_reason = piece.finish_reason or answer.finish_reason
    answer.spans = piece.spans or answer.spans
    if piece.prompt_tokens is not None:
        answer.prompt_tokens = piece.prompt_tokens


def _emit_end(
    progress: _Progress,
    call: Call,
    message: Mapping[str, Any],
    parsed: ParsedMessage,
    finish: FinishReason,
    usage: Mapping[str, int],
) -> None:
    envelope = progress.envelope
    rest = progress.text.finish(parsed.content) if progress.text is not None else parsed.content
    if rest:
        call.emit(envelope.chunk({"content": rest}))
    if parsed.tool_calls:
        call.emit(envelope.chunk(openai_chat.tool_call_delta(message)))
    call.emit(envelope.chunk({}, finish))
    if progress.request.include_usage:
        call.emit(envelope.usage_chunk(usage))
    call.emit(openai_chat.DONE)
