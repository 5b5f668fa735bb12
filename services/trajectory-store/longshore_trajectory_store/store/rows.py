"""Rows to domain objects and back; token arrays to one compressed blob and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import zstandard
from sqlalchemy.engine import RowMapping

from longshore_trajectory_store.domain.attempts import Attempt, AttemptState, Purpose
from longshore_trajectory_store.domain.batches import Run
from longshore_trajectory_store.domain.groups import Group, GroupState
from longshore_trajectory_store.domain.identity import AttemptIdentity, Sampling
from longshore_trajectory_store.domain.outcomes import (
    Discarded,
    DiscardReason,
    Failed,
    Failure,
    Outcome,
    Reward,
    Scored,
    TamperResistance,
    Termination,
)
from longshore_trajectory_store.domain.turns import Turn, TurnStatus, TurnSummary, VersionSpan, call_digest

# Ids repeat a lot and logprobs hardly at all: higher levels cost time and gain nothing.
_LEVEL = 1

_META = (
    "finish_reason", "template_digest", "tokenizer_digest", "base_digest", "engine", "dialect", "served_name",
    "received_at_ms", "first_token_at_ms", "done_at_ms",
)  # fmt: skip
_GROUP_FIELDS = (
    "group_id", "run_id", "panel", "task_digest", "step", "size", "min_scored", "refill", "created_at_ms",
    "consumed_step",
)  # fmt: skip
_ATTEMPT_FIELDS = (
    "attempt_id", "group_id", "run_id", "index", "panel", "task_digest", "seed", "created_at_ms", "epoch",
    "identity_digest", "trace_digest", "seal_digest", "start_version", "sealed_at_ms", "turns", "prompt_tokens",
    "completion_tokens", "agent_s", "verifier_s", "sandbox_id", "sequence", "trainable", "untrainable_reason",
)  # fmt: skip


def run_from_row(row: RowMapping) -> Run:
    """A run of the ledger."""
    return Run(**dict(row))


def group_to_row(group: Group) -> dict[str, Any]:
    """All columns but the number."""
    row = {name: getattr(group, name) for name in _GROUP_FIELDS}
    return row | {"purpose": group.purpose, "state": group.state, "seeds": json.dumps(group.seeds)}


def group_from_row(row: RowMapping) -> Group:
    """A group."""
    return Group(
        **{name: row[name] for name in _GROUP_FIELDS},
        purpose=Purpose(row["purpose"]),
        state=GroupState(row["state"]),
        seeds=tuple(json.loads(row["seeds"])),
        number=row["number"],
    )


def attempt_to_row(attempt: Attempt) -> dict[str, Any]:
    """All columns but the number."""
    row = {name: getattr(attempt, name) for name in _ATTEMPT_FIELDS}
    reward = None if attempt.reward is None else json.dumps(asdict(attempt.reward))
    identity = None if attempt.identity is None else json.dumps(asdict(attempt.identity))
    fixed = {"purpose": attempt.purpose, "state": attempt.state, "reward": reward, "identity": identity}
    return row | fixed | _outcome_to_row(attempt.outcome)


def attempt_from_row(row: RowMapping) -> Attempt:
    """An attempt."""
    return Attempt(
        **{name: row[name] for name in _ATTEMPT_FIELDS},
        purpose=Purpose(row["purpose"]),
        state=AttemptState(row["state"]),
        outcome=_outcome_from_row(row),
        reward=_reward_from_json(row["reward"]),
        identity=_identity_from_json(row["identity"]),
    )


def _outcome_to_row(outcome: Outcome | None) -> dict[str, Any]:
    value: float | None = None
    match outcome:
        case Scored(reward, termination):
            kind, label, value, evidence = "scored", termination.value, reward, ""
        case Failed(failure, evidence):
            kind, label = "failed", failure.value
        case Discarded(reason):
            kind, label, evidence = "discarded", reason.value, ""
        case _:
            kind, label, evidence = "open", "", ""
    return {"outcome_kind": kind, "outcome_label": label, "outcome_reward": value, "evidence": evidence}


def _outcome_from_row(row: RowMapping) -> Outcome | None:
    label = row["outcome_label"]
    match row["outcome_kind"]:
        case "scored":
            return Scored(row["outcome_reward"], Termination(label))
        case "failed":
            return Failed(Failure(label), row["evidence"])
        case "discarded":
            return Discarded(DiscardReason(label))
    return None


def _reward_from_json(text: str | None) -> Reward | None:
    if text is None:
        return None
    values = json.loads(text)
    resistance = values.pop("tamper_resistance")
    return Reward(**values, tamper_resistance=TamperResistance(resistance) if resistance else None)


def _identity_from_json(text: str | None) -> AttemptIdentity | None:
    if text is None:
        return None
    values = json.loads(text)
    return AttemptIdentity(**(values | {"sampling": Sampling(**values["sampling"])}))


def turn_to_row(turn: Turn) -> dict[str, Any]:
    """All columns but the number. Hashes and compresses: for long prompts run it in a thread."""
    versions = [span.version for span in turn.versions]
    meta = {name: getattr(turn, name) for name in _META}
    meta["sampling"] = asdict(turn.sampling)
    meta["versions"] = [[span.first_token, span.version] for span in turn.versions]
    arrays = turn.prompt_ids.tobytes() + turn.completion_ids.tobytes() + turn.logprobs.tobytes()
    return {
        "attempt_id": turn.attempt_id,
        "epoch": turn.lease_epoch,
        "turn": turn.turn,
        "parent_turn": turn.parent_turn,
        "status": turn.status,
        "trainable": turn.trainable,
        "untrainable_reason": turn.untrainable_reason,
        "prompt_tokens": turn.prompt_ids.size,
        "completion_tokens": turn.completion_ids.size,
        "logprob_count": turn.logprobs.size,
        "min_version": min(versions, default=None),
        "max_version": max(versions, default=None),
        "call_digest": call_digest(turn),
        "meta": json.dumps(meta, separators=(",", ":")),
        "arrays": zstandard.ZstdCompressor(level=_LEVEL).compress(arrays),
        "request_zst": turn.request_zst,
        "response_zst": turn.response_zst,
        "tools_zst": turn.tools_zst,
    }


def turn_from_row(row: RowMapping) -> Turn:
    """A turn with its arrays decompressed."""
    meta = json.loads(row["meta"])
    prompt, sampled, logprobs = row["prompt_tokens"], row["completion_tokens"], row["logprob_count"]
    data = zstandard.ZstdDecompressor().decompress(row["arrays"])
    ids = np.frombuffer(data, dtype="<i4", count=prompt + sampled)
    return Turn(
        attempt_id=row["attempt_id"],
        lease_epoch=row["epoch"],
        turn=row["turn"],
        parent_turn=row["parent_turn"],
        prompt_ids=ids[:prompt],
        completion_ids=ids[prompt:],
        logprobs=np.frombuffer(data, dtype="<f4", count=logprobs, offset=4 * (prompt + sampled)),
        versions=tuple(VersionSpan(first, version) for first, version in meta["versions"]),
        status=TurnStatus(row["status"]),
        sampling=Sampling(**meta["sampling"]),
        request_zst=bytes(row["request_zst"]),
        response_zst=bytes(row["response_zst"]),
        tools_zst=bytes(row["tools_zst"]),
        trainable=row["trainable"],
        untrainable_reason=row["untrainable_reason"],
        **{name: meta[name] for name in _META},
    )


def summary_from_row(row: RowMapping) -> TurnSummary:
    """A turn without its arrays; the blobs need not be selected."""
    meta = json.loads(row["meta"])
    return TurnSummary(
        turn=row["turn"],
        parent_turn=row["parent_turn"],
        status=TurnStatus(row["status"]),
        trainable=row["trainable"],
        untrainable_reason=row["untrainable_reason"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        min_version=row["min_version"],
        call_digest=row["call_digest"],
        template_digest=meta["template_digest"],
        tokenizer_digest=meta["tokenizer_digest"],
        base_digest=meta["base_digest"],
    )
