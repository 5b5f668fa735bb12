"""Alembic history of the trajectory store's schema."""
