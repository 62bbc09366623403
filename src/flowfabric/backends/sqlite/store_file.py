"""The files of a store as this process opened them: the database, its log and the index of the log.

SQLite finds these files by their names only when it opens them. If another program then deletes, moves or replaces one
of them, SQLite keeps writing to the former file, which no other process will open. So the store compares device and
inode of each name with the file that it opened. A path with symbolic links must still lead to that file. The writer
does this while it holds the write lock, and again after each commit, before it acknowledges anything. A reader does
this after each read.

When the last connection to a file closes, SQLite moves the log into the database and deletes the log by its name. After
a replacement, that name may belong to the log of another process. So the store also has a *guard*: a read-only
connection. While the guard is open, no other connection is the last one, and the guard itself cannot write. If the
files were replaced, the guard is closed last, and nothing at the path changes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from flowfabric.core.errors import Unavailable

LOG_SUFFIX = "-wal"
INDEX_SUFFIX = "-shm"
_OWNER_ONLY = 0o600
_creating = threading.Lock()


class StoreFile:
    """The identity of the open files, and the guard.

    `path` has no symbolic links. `link` is the path that leads there, as the caller named it.
    """

    def __init__(self, path: str, link: str | None = None) -> None:
        self.path = path
        links = () if link in (None, path) else (link,)
        self._names = (path, path + LOG_SUFFIX, path + INDEX_SUFFIX, *links)
        self._opened: tuple[tuple[str, int, int], ...] = ()
        self._guard: sqlite3.Connection | None = None
        self._is_replaced = False

    @property
    def identity(self) -> str:
        """The identity of the database file, which the store remembers."""
        [(_, device, inode), *_] = self._opened
        return f"{device}:{inode}"

    def open_guard(self) -> None:
        """Open the guard. The file must already use a write-ahead log."""
        self._guard = connect_read_only(self.path)
        # A connection locks the file with its first read, and keeps this lock until it is closed.
        self._guard.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()

    def remember(self, before: os.stat_result) -> None:
        """Remember the open files. `before` is the state of the database before it was opened."""
        try:
            self._opened = tuple(map(_identify, self._names))
        except FileNotFoundError as error:
            raise replaced_error(self.path) from error
        if self._opened[0] != (self.path, before.st_dev, before.st_ino):
            self._is_replaced = True
            raise replaced_error(self.path)

    def check(self) -> None:
        """Raise if a file was deleted, moved or replaced since it was opened. Once this has raised, it always does."""
        if self._is_replaced or not self._is_unchanged():
            self._is_replaced = True
            raise replaced_error(self.path)

    def is_intact(self) -> bool:
        """Return whether `check` would not raise."""
        try:
            self.check()
        except (Unavailable, OSError):
            return False
        return True

    def close(self, last: sqlite3.Connection, *, may_clean_up: bool) -> None:
        """Close the guard and the connection `last`.

        With `may_clean_up`, SQLite may move the log into the database and delete the log, if no other process uses it.
        """
        guard, self._guard = self._guard, None
        connections = [guard, last] if may_clean_up else [last, guard]
        for connection in connections:
            if connection is not None:
                connection.close()

    def _is_unchanged(self) -> bool:
        try:
            for name, device, inode in self._opened:
                status = os.stat(name)  # noqa: PTH116 - faster than a Path, and this runs twice per commit
                if status.st_ino != inode or status.st_dev != device:
                    return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def replaced_error(path: str) -> Unavailable:
    """Return the error for a store whose files were deleted, moved or replaced."""
    message = (
        f"{path} or its log was deleted, moved or replaced while this process used it, so nothing was acknowledged; "
        "put the right file in place and restart this process"
    )
    return Unavailable("storage_replaced", message, path=path)


def connect_read_only(path: str, *, without_log: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write. Closing it changes no file. With `without_log`, it ignores the log."""
    mode = "immutable=1" if without_log else "mode=ro"
    connection = sqlite3.connect(
        f"{Path(path).as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    return connection


def create_file(path: str) -> None:
    """Create an empty file that only its owner can read, if there is none. It will contain the signing keys.

    The mode does not depend on the umask. SQLite gives the same mode to the log.
    """
    with _creating:  # A second engine must not lock the new file yet, because closing a file ends its locks.
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
        except FileExistsError:
            return
        except OSError as error:
            message = f"the file cannot be created ({error.strerror}); check the path and the permissions"
            raise Unavailable("storage_not_found", message) from error
        try:
            os.fchmod(file, _OWNER_ONLY)
        finally:
            os.close(file)


def _identify(name: str) -> tuple[str, int, int]:
    status = os.stat(name)  # noqa: PTH116 - as in `_is_unchanged`
    return name, status.st_dev, status.st_ino
