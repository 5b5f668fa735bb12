"""An attempt with its turns as one JSON line, for people and other tools. Field names are those of the protos, enum
values those of the contracts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import zstandard

from longshore_trajectory_store.domain.attempts import Attempt
from longshore_trajectory_store.domain.outcomes import Discarded, Failed, Outcome, Scored
from longshore_trajectory_store.domain.turns import Turn

# Bodies are bounded by the message size of the RPC; this stops a decompression bomb.
_MAX_BODY = 256 * 1024 * 1024


def json_line(attempt: Attempt, turns: Sequence[Turn]) -> bytes:
    """UTF-8, without the line break. An absent reward is absent."""
    values = asdict(attempt)
    values.pop("seal_digest")
    values["turn_count"] = values.pop("turns")
    values["outcome"] = _outcome(attempt.outcome)
    line = {"attempt": {k: v for k, v in values.items() if v is not None}, "turns": [_turn(turn) for turn in turns]}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    match outcome:
        case Scored():
            return {"scored": asdict(outcome)}
        case Failed():
            return {"failed": asdict(outcome)}
        case Discarded():
            return {"discarded": asdict(outcome)}
    return None


def _turn(turn: Turn) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(turn, name) for name in turn.__dataclass_fields__}
    values["sampling"] = asdict(turn.sampling)
    values["versions"] = [asdict(span) for span in turn.versions]
    for name in ("prompt_ids", "completion_ids"):
        values[name] = values[name].tolist()
    # An incomplete capture may hold NaN, which JSON has not.
    values["logprobs"] = [x if x == x and abs(x) != float("inf") else None for x in turn.logprobs.tolist()]
    for name in ("request", "response", "tools"):
        values[name] = _body(values.pop(f"{name}_zst"))
    return values


def _body(data: bytes) -> Any:
    """The JSON that was sent, when it is JSON; else its text; else base64 of what is stored."""
    if not data:
        return None
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_BODY).decode()
    except (zstandard.ZstdError, UnicodeDecodeError):
        return {"base64": base64.b64encode(data).decode()}
    try:
        return json.loads(text, parse_constant=str)
    except json.JSONDecodeError:
        return text
