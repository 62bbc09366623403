"""Checkpoint the write-ahead log, in only one process at a time.

Two concurrent checkpoints can corrupt the log in SQLite before 3.51.3, so automatic checkpoints are off. To checkpoint,
a process takes an OS lock on a lock file next to the database, between two transactions of its writer thread. If the
process dies, its lock ends. The lock file gets the same permissions as the database, as the log of SQLite does. A
process that cannot open the lock file leaves checkpoints to other processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
from pathlib import Path

_EVERY_BYTES = 4 * 1024 * 1024
_WAIT_FOR_READERS_MS = 250


class Checkpointer:
    """Checkpoints the log of a file once it has grown enough, if this process gets the lock."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._log = Path(path + "-wal")
        self._lock: int | None = None
        self._next_size = _EVERY_BYTES
        with contextlib.suppress(PermissionError):
            self._lock = _open_lock(path)

    def checkpoint_if_grown(self) -> None:
        """Checkpoint if the log has grown enough since the last checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            size = self._log.stat().st_size
            if size >= self._next_size:
                self.checkpoint(wait_ms=0 if size < 2 * _EVERY_BYTES else _WAIT_FOR_READERS_MS)
                # If a reader still needs the log, the log stays large, and must grow by the same size again first.
                self._next_size = self._log.stat().st_size + _EVERY_BYTES

    def checkpoint(self, wait_ms: int = 0) -> bool:
        """Move the pages of the log into the database file. Return False if another process is doing this now.

        Pages that readers still need after `wait_ms` stay in the log.
        """
        if self._lock is None:
            self._lock = _open_lock(self._path)
        if not _try_lock(self._lock):
            return False
        [busy_ms] = self._connection.execute("PRAGMA busy_timeout").fetchone()
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return True

    def use(self, connection: sqlite3.Connection) -> None:
        """Use another connection of the writer from now on."""
        self._connection = connection

    def close(self) -> None:
        """Close the lock file."""
        if self._lock is not None:
            os.close(self._lock)


def _open_lock(path: str) -> int:
    """Open the lock file of a database. It is only locked, never written, so read access is enough."""
    name, database = path + "-checkpoint", Path(path).stat()
    try:
        lock = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC)
    if os.geteuid() == 0:
        os.fchown(lock, database.st_uid, database.st_gid)
    os.fchmod(lock, stat.S_IMODE(database.st_mode))
    return lock


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
