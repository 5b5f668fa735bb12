"""Alembic history of the gateway database."""
