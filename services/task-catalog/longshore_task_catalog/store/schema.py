"""The tables as SQLAlchemy sees them; the migrations create them."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("content", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("state_reason", sa.Text),
    sa.Column("imported_at_ms", sa.BigInteger),
    sa.Column("source", sa.Text),
)
evidence = sa.Table(
    "evidence",
    metadata,
    sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("task_digest", sa.Text),
    sa.Column("kind", sa.Text),
    sa.Column("rewards", sa.Text),
    sa.Column("failures", sa.Text),
    sa.Column("image_digest", sa.Text),
    sa.Column("recorded_at_ms", sa.BigInteger),
    sa.Column("detail", sa.Text),
    sa.Column("token_exact", sa.Boolean),
)
datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text),
    sa.Column("splits", sa.Text),
    sa.Column("frozen_at_ms", sa.BigInteger),
)
