"""Tasks, evidence and datasets."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates all tables."""
    op.create_table(
        "tasks",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("state_reason", sa.Text, nullable=False),
        sa.Column("imported_at_ms", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_index("ix_tasks_name_digest", "tasks", ["name", "digest"])
    op.create_table(
        "evidence",
        # SQLite numbers rows by itself only for INTEGER.
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("task_digest", sa.Text, sa.ForeignKey("tasks.digest"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("rewards", sa.Text, nullable=False),
        sa.Column("failures", sa.Text, nullable=False),
        sa.Column("image_digest", sa.Text, nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("token_exact", sa.Boolean, nullable=False),
    )
    op.create_index("ix_evidence_task_digest", "evidence", ["task_digest", "sequence"])
    op.create_table(
        "datasets",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("splits", sa.Text, nullable=False),
        sa.Column("frozen_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drops all tables."""
    for table in ("datasets", "evidence", "tasks"):
        op.drop_table(table)
