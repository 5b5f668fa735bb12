"""Sandbox records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("sandbox_id", sa.String, primary_key=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("task_digest", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("attempt_id", sa.String, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("limits", sa.JSON, nullable=False),
        sa.Column("runtime", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("idempotency_key", sa.String, nullable=True, unique=True),
        sa.Column("image_digest", sa.String, nullable=False),
        sa.Column("end_reason", sa.String, nullable=False),
        sa.Column("end_detail", sa.String, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger, nullable=False),
        sa.Column("enforcement", sa.JSON, nullable=False),
    )
    op.create_index("sandboxes_by_run", "sandboxes", ["run_id", "state"])
    op.create_index("sandboxes_by_owner", "sandboxes", ["owner", "state"])


def downgrade() -> None:
    op.drop_table("sandboxes")
