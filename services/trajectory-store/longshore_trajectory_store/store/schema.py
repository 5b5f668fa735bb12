"""Tables, as the newest migration leaves them. Columns are listed by name only where code uses their types."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _table(name: str, *columns: sa.Column[object] | sa.UniqueConstraint) -> sa.Table:
    return sa.Table(name, metadata, *columns)


def _text(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.Text) for name in names]


def _integer(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.BigInteger) for name in names]


def _boolean(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.Boolean) for name in names]


def _double(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.Double) for name in names]


def _binary(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.LargeBinary) for name in names]


runs = _table(
    "runs",
    sa.Column("run_id", sa.Text, primary_key=True),
    *_integer("incarnation", "committed_step", "resume_step", "groups_released", "attempts_stale"),
    *_boolean("closed"),
    *_text("resume_digest"),
)

groups = _table(
    "groups",
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    *_text("group_id", "run_id", "purpose", "panel", "task_digest", "seeds", "state"),
    *_integer("step", "size", "min_scored", "created_at_ms", "consumed_step"),
    *_boolean("refill"),
)

attempts = _table(
    "attempts",
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    *_text("attempt_id", "group_id", "run_id", "purpose", "panel", "task_digest", "state", "outcome_kind"),
    *_text("outcome_label", "evidence", "reward", "identity", "identity_digest", "trace_digest", "seal_digest"),
    *_text("sandbox_id", "untrainable_reason"),
    *_integer("index", "seed", "created_at_ms", "epoch", "start_version", "sealed_at_ms", "turns", "prompt_tokens"),
    *_integer("completion_tokens", "sequence"),
    *_double("outcome_reward", "agent_s", "verifier_s"),
    *_boolean("trainable"),
)

turns = _table(
    "turns",
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    *_text("attempt_id", "status", "untrainable_reason", "call_digest", "meta"),
    *_integer("epoch", "turn", "parent_turn", "prompt_tokens", "completion_tokens", "logprob_count"),
    *_integer("min_version", "max_version"),
    *_boolean("trainable"),
    *_binary("arrays", "request_zst", "response_zst", "tools_zst"),
    sa.UniqueConstraint("attempt_id", "epoch", "turn"),
)

batches = _table(
    "batches",
    sa.Column("batch_id", sa.Text, primary_key=True),
    *_text("run_id", "state", "group_ids"),
    *_integer("step", "incarnation", "taken_at_ms"),
)

sequences = _table("sequences", sa.Column("name", sa.Text, primary_key=True), *_integer("value"))
