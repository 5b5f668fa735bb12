"""Alembic history of the controller's database."""
