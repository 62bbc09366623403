"""The PostgreSQL backend. It uses its own schema and does not depend on session settings or isolation levels."""

from flowfabric.backends.postgres.store import open_postgres

__all__ = ["open_postgres"]
