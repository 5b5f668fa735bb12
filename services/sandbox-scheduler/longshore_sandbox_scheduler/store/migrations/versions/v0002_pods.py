"""What a sandbox on a cluster has besides: network class, launch type, instance, node, deadline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_TEXTS = {"network": "no-network", "launch": "cold", "instance": "", "node": ""}


def upgrade() -> None:
    for name, default in _TEXTS.items():
        op.add_column("sandboxes", sa.Column(name, sa.String, nullable=False, server_default=default))
    op.add_column("sandboxes", sa.Column("deadline_at_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("sandboxes_by_expiry", "sandboxes", ["state", "expires_at_ms"])


def downgrade() -> None:
    op.drop_index("sandboxes_by_expiry", "sandboxes")
    for name in (*_TEXTS, "deadline_at_ms"):
        op.drop_column("sandboxes", name)
