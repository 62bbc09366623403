"""Translation of sqlite3 errors."""

from __future__ import annotations

import errno
import sqlite3

from flowfabric.core.errors import Unavailable

_PRIMARY_CODE = 0xFF
_LOCK_ERRORS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_MEANING = {
    sqlite3.SQLITE_CONSTRAINT: ("storage_error", "the database rejected a row"),
    sqlite3.SQLITE_MISMATCH: ("storage_error", "the database rejected a row"),
    sqlite3.SQLITE_TOOBIG: ("storage_error", "the database rejected a row"),
    sqlite3.SQLITE_BUSY: ("storage_busy", "another process kept the file locked for too long; repeat the call"),
    sqlite3.SQLITE_LOCKED: ("storage_busy", "another connection kept a table locked for too long; repeat the call"),
    sqlite3.SQLITE_INTERRUPT: ("statement_timeout", "a statement took longer than the statement timeout"),
    sqlite3.SQLITE_FULL: ("storage_full", "the disk is full; free some space and repeat the call"),
    sqlite3.SQLITE_READONLY: ("storage_read_only", "the file or its folder cannot be written; check the permissions"),
    sqlite3.SQLITE_IOERR: ("storage_io_error", "the disk reported an error; check the disk"),
    sqlite3.SQLITE_CORRUPT: ("storage_damaged", "the file is damaged; restore a backup with `flowfabric restore`"),
    sqlite3.SQLITE_NOTADB: ("storage_damaged", "the file is not a SQLite database; check the path"),
    sqlite3.SQLITE_PROTOCOL: (
        "storage_without_locks",
        "the file system has no working locks; use a local disk or PostgreSQL",
    ),
    sqlite3.SQLITE_IOERR_SHORT_READ: (
        "storage_log_mismatch",
        "the log was deleted while other processes use the file; stop all of them, then start them again",
    ),
    sqlite3.SQLITE_CANTOPEN: ("storage_not_found", "the file cannot be opened; check the path and the permissions"),
}


# These results of SQLite say more than their primary code.
_MEANING |= dict.fromkeys(
    (
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_SHMLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    ),
    _MEANING[sqlite3.SQLITE_PROTOCOL],
)


def translate(error: BaseException) -> BaseException:
    """Return our error for a driver error, and other errors unchanged."""
    if isinstance(error, OSError) and error.errno in _LOCK_ERRORS:
        message = f"the file system has no working locks ({error}); use a local disk or PostgreSQL"
        ours = Unavailable("storage_without_locks", message)
    elif isinstance(error, OSError):
        ours = Unavailable("storage_read_only", f"a file next to the database cannot be used ({error})")
    elif isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        code = code if code in _MEANING else code & _PRIMARY_CODE
        name, advice = _MEANING.get(code, ("storage_refused", "the database rejected a statement"))
        ours = Unavailable(name, f"{advice} (SQLite: {error})")
    else:
        return error
    ours.__cause__ = error
    return ours
