"""PostgreSQL: an own schema, guarded statements, nothing that depends on the isolation level or on the session."""

from flowfabric.backends.postgres.store import open_postgres

__all__ = ["open_postgres"]
