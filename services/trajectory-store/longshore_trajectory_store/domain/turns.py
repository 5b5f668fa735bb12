"""One captured model call, whether it was captured whole, and digests that tell two captures apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from longshore_common.digests import canonical_json
from longshore_common.errors import InvalidSpec
from longshore_trajectory_store.domain.identity import Sampling

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

# A logprob is at most 0; engines round, so a hair above is still one.
_LOGPROB_SLACK = 1e-3


class TurnStatus(StrEnum):
    """Whether the call may become part of a trace."""

    OK = "ok"
    ERROR = "error"
    """An upstream error; never a trace."""
    CAPTURE_INCOMPLETE = "capture_incomplete"
    """Ids, logprobs and versions do not match."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens from `first_token` on were sampled by `version`."""

    first_token: int
    version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """prompt_ids [P] int32, completion_ids [C] int32, logprobs [C] float32 (natural log); *_ms: since 1970."""

    attempt_id: str
    lease_epoch: int
    turn: int
    parent_turn: int
    prompt_ids: Ids
    completion_ids: Ids
    logprobs: Floats
    versions: tuple[VersionSpan, ...]
    status: TurnStatus
    finish_reason: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    template_digest: str = ""
    tokenizer_digest: str = ""
    base_digest: str = ""
    engine: str = ""
    dialect: str = ""
    served_name: str = ""
    request_zst: bytes = b""
    response_zst: bytes = b""
    tools_zst: bytes = b""
    received_at_ms: int = 0
    first_token_at_ms: int = 0
    done_at_ms: int = 0
    trainable: bool = True
    untrainable_reason: str = ""


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """What sealing needs to know of a stored turn, without its arrays."""

    turn: int
    parent_turn: int
    status: TurnStatus
    trainable: bool
    untrainable_reason: str
    prompt_tokens: int
    completion_tokens: int
    min_version: int | None
    call_digest: str
    template_digest: str
    tokenizer_digest: str
    base_digest: str


def check_key(turn: Turn) -> None:
    """Refuses a turn that names no place.

    Raises:
        InvalidSpec: empty attempt, epoch below 1, negative turn, a parent that is not an earlier turn, a negative id.
    """
    where = f"turn {turn.turn} of attempt {turn.attempt_id or '(none)'}"
    if not turn.attempt_id:
        raise InvalidSpec("turn.attempt_id is empty", field="turn.attempt_id")
    if turn.lease_epoch < 1:
        raise InvalidSpec(f"{where}: lease epoch {turn.lease_epoch}; epochs start at 1", field="turn.lease_epoch")
    if turn.turn < 0:
        raise InvalidSpec(f"{where}: turns count from 0", field="turn.turn")
    if not -1 <= turn.parent_turn < turn.turn:
        raise InvalidSpec(
            f"{where}: parent turn {turn.parent_turn} is not an earlier turn (-1: none)", field="turn.parent_turn"
        )
    if not math.isfinite(turn.sampling.temperature) or not math.isfinite(turn.sampling.top_p):
        raise InvalidSpec(f"{where}: sampling has a number that is not finite", field="turn.sampling")
    for name, ids in (("prompt_ids", turn.prompt_ids), ("completion_ids", turn.completion_ids)):
        if ids.size and int(ids.min()) < 0:
            raise InvalidSpec(f"{where}: negative token id in {name}", field=f"turn.{name}")


def capture_fault(turn: Turn) -> str | None:
    """Why the capture is not token-exact, or None. Nothing is padded or re-encoded to make it fit."""
    sampled, logprobs = turn.completion_ids.size, turn.logprobs.size
    if sampled != logprobs:
        return f"{sampled} completion ids, {logprobs} logprobs"
    if not np.isfinite(turn.logprobs).all():
        return "a logprob is not finite"
    if sampled and float(turn.logprobs.max()) > _LOGPROB_SLACK:
        return f"a logprob is {float(turn.logprobs.max())}, above 0"
    if sampled and not turn.prompt_ids.size:
        return "sampled tokens without prompt ids"
    return _span_fault(turn.versions, sampled)


def _span_fault(spans: Sequence[VersionSpan], sampled: int) -> str | None:
    if not sampled:
        return None
    if not spans or spans[0].first_token != 0:
        return "the first sampled token has no policy version"
    starts = [span.first_token for span in spans]
    if any(b <= a for a, b in pairwise(starts)) or starts[-1] >= sampled:
        return f"version spans start at {starts} over {sampled} tokens"
    if any(span.version < 0 for span in spans):
        return "a negative policy version"
    return None


def admitted(turn: Turn) -> Turn:
    """The turn as it is kept: one that says ok but is not captured token-exactly becomes capture_incomplete."""
    if turn.status is TurnStatus.ERROR:
        return replace(turn, trainable=False, untrainable_reason=turn.untrainable_reason or "upstream error")
    fault = capture_fault(turn)
    if turn.status is TurnStatus.OK and fault is None:
        if turn.trainable:
            return turn
        return replace(turn, untrainable_reason=turn.untrainable_reason or "marked untrainable by the gateway")
    reason = fault or turn.untrainable_reason or "the gateway captured it incompletely"
    return replace(turn, status=TurnStatus.CAPTURE_INCOMPLETE, trainable=False, untrainable_reason=reason)


def token_versions(turn: Turn) -> Ids:
    """The version of each completion token, [C] int32."""
    versions = np.empty(turn.completion_ids.size, dtype=np.int32)
    for span in turn.versions:
        versions[span.first_token :] = span.version
    return versions


def call_digest(turn: Turn) -> str:
    """Digest of the captured call itself: all but (attempt, epoch, turn, parent)."""
    header = [
        turn.status, turn.finish_reason, asdict(turn.sampling), turn.template_digest, turn.tokenizer_digest,
        turn.base_digest, turn.engine, turn.dialect, turn.served_name, turn.received_at_ms, turn.first_token_at_ms,
        turn.done_at_ms, turn.trainable, turn.untrainable_reason, [[s.first_token, s.version] for s in turn.versions],
    ]  # fmt: skip
    total = hashlib.sha256(canonical_json(header))
    parts = (turn.prompt_ids.tobytes(), turn.completion_ids.tobytes(), turn.logprobs.tobytes())
    for part in (*parts, turn.request_zst, turn.response_zst, turn.tools_zst):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return "sha256:" + total.hexdigest()


def trace_digest(sandbox_id: str, turns: Sequence[TurnSummary]) -> str:
    """Digest over the captured calls of an attempt, in order, and its sandbox; empty when nothing was sampled.

    Times and bodies are in it, because at temperature 1 two honest attempts of a small model often sample the very same
    tokens; the same calls from the same sandbox under two attempts are one run counted twice.
    """
    calls = [t.call_digest for t in sorted(turns, key=lambda t: t.turn) if t.completion_tokens]
    if not calls:
        return ""
    return "sha256:" + hashlib.sha256(canonical_json([sandbox_id, calls])).hexdigest()
