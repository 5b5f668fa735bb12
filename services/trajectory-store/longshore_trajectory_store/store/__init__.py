"""The store's Protocol, its SQL backend (SQLite and Postgres), and the Alembic history."""
