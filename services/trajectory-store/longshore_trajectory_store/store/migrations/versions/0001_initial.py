"""Runs, groups, attempts, turns, batches and the seal sequence."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite numbers rows by itself only for INTEGER.
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Creates all tables."""
    _runs_and_groups()
    _attempts()
    _turns()
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("group_ids", sa.Text, nullable=False),
        sa.Column("taken_at_ms", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("run_id", "step", "incarnation", name="uq_batches_run_step_incarnation"),
    )
    sequences = op.create_table(
        "sequences",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(sequences, [{"name": "sealed", "value": 0}])


def _runs_and_groups() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.Column("committed_step", sa.BigInteger, nullable=False),
        sa.Column("resume_digest", sa.Text, nullable=False),
        sa.Column("resume_step", sa.BigInteger, nullable=False),
        sa.Column("groups_released", sa.Integer, nullable=False),
        sa.Column("attempts_stale", sa.Integer, nullable=False),
    )
    op.create_table(
        "groups",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("group_id", sa.Text, nullable=False, unique=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("panel", sa.Text, nullable=False),
        sa.Column("task_digest", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("min_scored", sa.Integer, nullable=False),
        sa.Column("refill", sa.Boolean, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("seeds", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("consumed_step", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_groups_run_state", "groups", ["run_id", "state", "step", "number"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("attempt_id", sa.Text, nullable=False, unique=True),
        sa.Column("group_id", sa.Text, sa.ForeignKey("groups.group_id"), nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("panel", sa.Text, nullable=False),
        sa.Column("task_digest", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("outcome_kind", sa.Text, nullable=False),
        sa.Column("outcome_label", sa.Text, nullable=False),
        sa.Column("outcome_reward", sa.Double, nullable=True),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("reward", sa.Text, nullable=True),
        sa.Column("identity", sa.Text, nullable=True),
        sa.Column("identity_digest", sa.Text, nullable=False),
        sa.Column("trace_digest", sa.Text, nullable=False),
        sa.Column("seal_digest", sa.Text, nullable=False),
        sa.Column("start_version", sa.BigInteger, nullable=False),
        sa.Column("sealed_at_ms", sa.BigInteger, nullable=False),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("agent_s", sa.Double, nullable=False),
        sa.Column("verifier_s", sa.Double, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("trainable", sa.Boolean, nullable=False),
        sa.Column("untrainable_reason", sa.Text, nullable=False),
        # The contracts' rule, where no code can forget it: a reward exactly when the attempt is scored.
        sa.CheckConstraint("(outcome_kind = 'scored') = (outcome_reward IS NOT NULL)", name="ck_attempts_reward"),
    )
    op.create_index("ix_attempts_group", "attempts", ["group_id", "index"], unique=True)
    op.create_index("ix_attempts_run_sequence", "attempts", ["run_id", "sequence"])
    op.create_index("ix_attempts_run_number", "attempts", ["run_id", "number"])


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("attempt_id", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("parent_turn", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("trainable", sa.Boolean, nullable=False),
        sa.Column("untrainable_reason", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("logprob_count", sa.Integer, nullable=False),
        sa.Column("min_version", sa.BigInteger, nullable=True),
        sa.Column("max_version", sa.BigInteger, nullable=True),
        sa.Column("call_digest", sa.Text, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Column("arrays", sa.LargeBinary, nullable=False),
        sa.Column("request_zst", sa.LargeBinary, nullable=False),
        sa.Column("response_zst", sa.LargeBinary, nullable=False),
        sa.Column("tools_zst", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("attempt_id", "epoch", "turn", name="uq_turns_attempt_epoch_turn"),
    )


def downgrade() -> None:
    """Drops all tables."""
    for name in ("sequences", "batches", "turns", "attempts", "groups", "runs"):
        op.drop_table(name)
