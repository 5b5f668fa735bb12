"""Alembic history of the scheduler's database."""
