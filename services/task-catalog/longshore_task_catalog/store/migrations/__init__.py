"""Alembic history of this service; the only thing that creates or alters its tables."""
