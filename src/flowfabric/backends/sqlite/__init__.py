"""The SQLite backend: one file, one writer thread per process, any number of processes on one host."""

from flowfabric.backends.sqlite.store import open_sqlite, restore_sqlite

__all__ = ["open_sqlite", "restore_sqlite"]
