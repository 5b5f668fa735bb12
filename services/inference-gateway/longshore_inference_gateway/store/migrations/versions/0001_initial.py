"""Aliases, policy versions, sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates the first schema."""
    op.create_table(
        "aliases",
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("current_version", sa.BigInteger),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("retired", sa.Boolean, nullable=False),
    )
    op.create_table(
        "policies",
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        *[sa.Column(name, sa.Text, nullable=False) for name in ("kind", "state", "uri", "digest")],
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("published_at_ms", sa.BigInteger, nullable=False),
        *[
            sa.Column(name, sa.Text, nullable=False)
            for name in ("base_digest", "tokenizer_digest", "template_digest", "detail")
        ],
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("token_hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("attempt_id", sa.Text, nullable=False),
        sa.Column("lease_epoch", sa.BigInteger, nullable=False),
        sa.Column("alias", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("sampling", sa.Text, nullable=False),
        sa.Column("max_session_tokens", sa.BigInteger, nullable=False),
        sa.Column("opened_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("closed_at_ms", sa.BigInteger),
        sa.Column("totals", sa.Text),
    )
    op.create_index("ix_sessions_attempt", "sessions", ["attempt_id", "lease_epoch"])
    op.create_index("ix_sessions_open", "sessions", ["closed_at_ms"])


def downgrade() -> None:
    """Removes it."""
    for table in ("sessions", "policies", "aliases"):
        op.drop_table(table)
