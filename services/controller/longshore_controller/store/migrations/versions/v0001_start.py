"""Runs, their tasks, events, steps, groups and attempts.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default="")


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def _real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float(), nullable=False, server_default="0")


def upgrade() -> None:
    """Creates everything."""
    _create_runs()
    _create_history()
    _create_work()


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), primary_key=True),
        _text("name"), _text("state"), _text("state_reason"),
        _text("plan_json"), _text("plan_digest"),
        _number("seed"), _text("alias"),
        _number("step"), _number("total_steps"), _number("policy_version"), _number("incarnation"),
        _text("base_digest"),
        _number("sealed_sequence"),
        _text("metrics_json"), _text("report_json"),
        sa.Column("idempotency_key", sa.Text(), unique=True),
        _number("created_at_ms"), _number("updated_at_ms"), _number("finished_at_ms"),
    )  # fmt: skip
    op.create_index("runs_by_name", "runs", ["name", "created_at_ms"])
    op.create_table(
        "run_tasks",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        _text("split"), _text("name"), _text("instruction"), _text("skill"),
        _real("agent_timeout_s"),
    )  # fmt: skip


def _create_history() -> None:
    op.create_table(
        "events",
        sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id"), nullable=False),
        _number("at_ms"), _text("kind"), _text("message"), _text("data_json"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_index("events_by_run", "events", ["run_id", "sequence"])
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("phase", sa.Text(), primary_key=True),
        sa.Column("step", sa.BigInteger(), primary_key=True, autoincrement=False),
        _number("incarnation"), _text("metrics_json"), _text("seconds_json"), _number("total_steps"), _number("at_ms"),
    )  # fmt: skip


def _create_work() -> None:
    op.create_table(
        "groups",
        sa.Column("group_id", sa.Text(), primary_key=True),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id"), nullable=False),
        _text("purpose"), _text("panel"), _text("task_digest"), _text("state"),
        _number("ordinal"), _number("refill"), _number("step"), _number("size"),
        sa.Column("superseded", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("pinned_version", sa.BigInteger()),
        _number("created_at_ms"),
    )  # fmt: skip
    op.create_index("groups_by_slot", "groups", ["run_id", "purpose", "panel", "ordinal"])
    op.create_index("groups_by_state", "groups", ["run_id", "purpose", "state"])
    op.create_table(
        "attempts",
        sa.Column("queue_id", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("attempt_id", sa.Text(), unique=True, nullable=False),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("group_id", sa.Text(), sa.ForeignKey("groups.group_id"), nullable=False),
        _number("position"), _number("seed"), _text("state"), _number("priority"),
        _number("epoch"), _text("worker_id"), _number("expires_at_ms"), _number("failures"),
        _number("first_leased_at_ms"), _number("sealed_at_ms"), _number("turns"),
        _number("prompt_tokens"), _number("completion_tokens"), _real("agent_s"), _real("verifier_s"),
    )  # fmt: skip
    op.create_index("attempts_queue", "attempts", ["state", "priority", "queue_id"])
    op.create_index("attempts_by_group", "attempts", ["group_id"])
    op.create_index("attempts_by_run", "attempts", ["run_id"])


def downgrade() -> None:
    """Drops everything."""
    for table in ("attempts", "groups", "steps", "events", "run_tasks", "runs"):
        op.drop_table(table)
