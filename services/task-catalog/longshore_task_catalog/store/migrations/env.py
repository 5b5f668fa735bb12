"""Run by longshore_common.database.migrate."""

from alembic import context

from longshore_common.database import run_migrations

run_migrations(context.config, context)
