"""Tables as the queries see them; the Alembic history in migrations/ makes them."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("current_version", sa.BigInteger),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("retired", sa.Boolean, nullable=False),
)

policies = sa.Table(
    "policies",
    metadata,
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("uri", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("published_at_ms", sa.BigInteger, nullable=False),
    sa.Column("base_digest", sa.Text, nullable=False),
    sa.Column("tokenizer_digest", sa.Text, nullable=False),
    sa.Column("template_digest", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
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
    sa.Index("ix_sessions_attempt", "attempt_id", "lease_epoch"),
    sa.Index("ix_sessions_open", "closed_at_ms"),
)
