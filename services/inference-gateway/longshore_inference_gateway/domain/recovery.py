"""Reads a trace back from the trajectory store: after a restart a session goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable

from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain import openai_chat
from longshore_inference_gateway.domain.models import Turn, TurnStatus
from longshore_inference_gateway.domain.ports import TurnSink
from longshore_inference_gateway.domain.sessions import Session


class Recovery:
    """Rebuilds turn numbers, lineage and totals of restored sessions."""

    def __init__(self, sink: TurnSink, decompress: Callable[[bytes], bytes]) -> None:
        self._sink = sink
        self._decompress = decompress

    async def __call__(self, session: Session) -> None:
        """Does nothing when the trace is known.

        Raises:
            Unavailable: the trajectory store cannot be asked.
        """
        trace = session.trace
        async with trace.recovering:
            if trace.recovered:
                return
            turns = await self._sink.turns(session.record.attempt_id, session.record.lease_epoch)
            for turn in turns:
                self._add(session, turn)
            trace.recovered = True

    def _add(self, session: Session, turn: Turn) -> None:
        trace, totals = session.trace, session.totals
        trace.next_turn = max(trace.next_turn, turn.turn + 1)
        trace.calls_started += 1
        totals.turns += 1
        if turn.status is TurnStatus.ERROR:
            return
        trace.sampled_tokens += len(turn.completion_ids)
        totals.prompt_tokens += len(turn.prompt_ids)
        totals.completion_tokens += len(turn.completion_ids)
        if turn.status is TurnStatus.CAPTURE_INCOMPLETE:
            totals.capture_complete = False
            return
        try:
            request = openai_chat.parse_request(self._decompress(turn.request))
            reply = json.loads(self._decompress(turn.response))["choices"][0]["message"]
        except (InvalidSpec, ValueError, KeyError, IndexError):
            # Without its messages it cannot be continued; the next request starts a new branch.
            return
        prompt = trace.lineage.recall(request.messages, request.tools, turn.prompt_ids, turn.parent_turn)
        trace.lineage.record(prompt, turn.turn, turn.completion_ids, reply)
