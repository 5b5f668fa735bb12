"""Tables as queries see them. Alembic's history creates them; this file must say the same."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, Table, Text

metadata = MetaData()

_SEQUENCE = BigInteger().with_variant(Integer(), "sqlite")


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False, default="") for name in names]


def _numbers(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False, default=0) for name in names]


runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    *_texts("name", "state", "state_reason", "plan_json", "plan_digest", "alias", "base_digest"),
    *_texts("metrics_json", "report_json"),
    *_numbers("seed", "step", "total_steps", "policy_version", "incarnation", "sealed_sequence"),
    *_numbers("created_at_ms", "updated_at_ms", "finished_at_ms"),
    Column("idempotency_key", Text, unique=True),
)

run_tasks = Table(
    "run_tasks",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    *_texts("split", "name", "instruction", "skill"),
    Column("agent_timeout_s", Float, nullable=False, default=0.0),
)

events = Table(
    "events",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    *_texts("run_id", "kind", "message", "data_json"),
    *_numbers("at_ms"),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("phase", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    *_texts("metrics_json", "seconds_json"),
    *_numbers("incarnation", "total_steps", "at_ms"),
)

groups = Table(
    "groups",
    metadata,
    Column("group_id", Text, primary_key=True),
    *_texts("run_id", "purpose", "panel", "task_digest", "state"),
    *_numbers("ordinal", "refill", "step", "size", "created_at_ms"),
    Column("superseded", Boolean, nullable=False, default=False),
    Column("pinned_version", BigInteger),
)

attempts = Table(
    "attempts",
    metadata,
    Column("queue_id", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("attempt_id", Text, unique=True, nullable=False),
    *_texts("run_id", "group_id", "state", "worker_id"),
    *_numbers("position", "seed", "priority", "epoch", "expires_at_ms", "failures", "first_leased_at_ms"),
    *_numbers("sealed_at_ms", "turns", "prompt_tokens", "completion_tokens"),
    Column("agent_s", Float, nullable=False, default=0.0),
    Column("verifier_s", Float, nullable=False, default=0.0),
)
