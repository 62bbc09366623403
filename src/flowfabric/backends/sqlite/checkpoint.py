"""Checkpoint the write-ahead log, in only one process at a time.

Two concurrent checkpoints can corrupt the log in SQLite before 3.51.3, so automatic checkpoints are off. To checkpoint,
a process takes an OS lock on a lock file next to the database, between two transactions of its writer thread. If the
process dies, its lock ends. The lock file gets the same permissions as the database, as the log of SQLite does. A
process that cannot open the lock file leaves checkpoints to other processes.

A process also holds this lock while it opens or closes the store. So no process checkpoints or deletes a log while
another one decides whether the files at the path belong together.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowfabric.backends.sqlite.store_file import LOG_SUFFIX, StoreFile
from flowfabric.core.errors import Unavailable

_EVERY_BYTES = 4 * 1024 * 1024
_WAIT_FOR_READERS_MS = 250
_SUFFIX = "-checkpoint"
_POLL_S = 0.005


class FileLock:
    """The OS lock on the lock file of a store."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock inside the block. A process that may not open the lock file continues without it."""
        try:
            self._acquire(timeout_s)
        except PermissionError:
            yield
            return
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take the lock. Return False if another process or engine has it."""
        while True:
            if self._file is None:
                self._file = _open_lock(self._path)
            if not _try_lock(self._file):
                return False
            if _is_at(self._file, self._path + _SUFFIX):
                return True
            self.close()  # The lock file was deleted, and other processes may lock another one.

    def release(self) -> None:
        """Return the lock."""
        import fcntl  # Windows has no such module, and `check_environment` refuses files there.

        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file, which also returns the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _acquire(self, timeout_s: float) -> None:
        import fcntl

        ends = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > ends:
                message = f"another process kept {self._path}{_SUFFIX} locked for too long; repeat the call"
                raise Unavailable("storage_busy", message)
            time.sleep(_POLL_S)
        if self._file is not None:
            # SQLite locks with `fcntl`. If a file system has no such locks, SQLite reports a busy file.
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(self._file, fcntl.LOCK_UN)


class Checkpointer:
    """Checkpoints the log of a file once it has grown enough, if this process gets the lock."""

    def __init__(self, connection: sqlite3.Connection, file: StoreFile, lock: FileLock) -> None:
        self._connection = connection
        self._file = file
        self._log = Path(file.path + LOG_SUFFIX)
        self._lock = lock
        self._next_size = _EVERY_BYTES

    def checkpoint_if_grown(self) -> None:
        """Checkpoint if the log has grown enough since the last checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            size = self._log.stat().st_size
            if size >= self._next_size:
                self.checkpoint(wait_ms=0 if size < 2 * _EVERY_BYTES else _WAIT_FOR_READERS_MS)
                # If a reader still needs the log, the log stays large, and must grow by the same size again first.
                self._next_size = self._log.stat().st_size + _EVERY_BYTES

    def checkpoint(self, wait_ms: int = 0) -> bool:
        """Move the pages of the log into the database file. Return False if that is not possible now.

        Another process may be doing it, or the files may have been replaced. Pages that readers still need after
        `wait_ms` stay in the log.
        """
        if not self._lock.try_acquire():
            return False
        try:
            # Check under the lock: a process that opens a replaced file waits for the lock before it writes.
            if not self._file.is_intact():
                return False
            self._run(wait_ms)
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Close the connection, the guard and the lock file."""
        try:
            # If another process has the lock, it may be opening a file that has replaced this one.
            has_lock = self._lock.try_acquire()
        except PermissionError:
            has_lock = True  # No lock is possible, so only the files decide.
        except OSError:
            has_lock = False  # The store or its folder was deleted.
        self._file.close(self._connection, may_clean_up=has_lock and self._file.is_intact())
        self._lock.close()

    def _run(self, wait_ms: int) -> None:
        [busy_ms] = self._connection.execute("PRAGMA busy_timeout").fetchone()
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {busy_ms}")

    def use(self, connection: sqlite3.Connection) -> None:
        """Use another connection of the writer from now on."""
        self._connection = connection


def _open_lock(path: str) -> int:
    """Open the lock file of a database. It is only locked, never written, so read access is enough."""
    name, database = path + _SUFFIX, Path(path).stat()
    try:
        lock = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        os.fchown(lock, database.st_uid, database.st_gid)
    os.fchmod(lock, stat.S_IMODE(database.st_mode))
    return lock


def _try_lock(lock: int) -> bool:
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, name: str) -> bool:
    """Return whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file), Path(name).stat())
    except FileNotFoundError:
        return False
