"""The SQL backend of domain.ports.TrajectoryStore (SQLite and Postgres), and its Alembic history."""
