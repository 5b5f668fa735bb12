"""Alembic entry: runs the history on the URL that `longshore_common.database.migrate` gives."""

from alembic import context

from longshore_common.database import run_migrations

run_migrations(context.config, context)
