"""Copy a store safely: back up a store in use, and put a backup in the place of a store.

Both directions use SQLite's online backup, check the whole copy, and only then give it its final name. So a file with
that name is complete, even if the program is interrupted.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from flowfabric.backends.sqlite.checkpoint import FileLock
from flowfabric.backends.sqlite.connection import check_environment
from flowfabric.backends.sqlite.errors import translate
from flowfabric.backends.sqlite.integrity import damaged_error, find_damage
from flowfabric.backends.sqlite.log_check import check_log, has_log
from flowfabric.backends.sqlite.migrate import migrate, read_file_identity, require_store
from flowfabric.backends.sqlite.opening import adopt
from flowfabric.backends.sqlite.store_file import INDEX_SUFFIX, LOG_SUFFIX, connect_read_only, create_file
from flowfabric.core.errors import InvalidRequest, Refused, Unavailable
from flowfabric.store.statements import Dialect, Statement

# The bytes of a database and of its index that every connection of SQLite keeps locked.
_DATABASE_LOCK = (0x40000000, 512)
_INDEX_LOCK = (128, 1)
_LOCK_TIMEOUT_S = 10.0
# The identity of the file in a backup, which no file has.
_BACKUP = "backup"


def write_backup(path: str, target: str, statements: Mapping[str, Statement], check_file: Callable[[], None]) -> None:
    """Write a checked copy of the store at `path` to the new file `target`. Other processes may use the store.

    `check_file` raises if the store was replaced.
    """
    with _translated_errors():
        target = str(Path(target).absolute())
        if os.path.lexists(target):
            raise exists_error(target)
        part = f"{target}.part-{os.getpid()}"
        try:
            _copy(path, part)
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                _check_copy(copy, path, statements)
                # The store notices that it is a copy, even if the backup is copied over the file of the store.
                copy.execute("UPDATE ff_store SET file = ?", (_BACKUP,))
            check_file()
            _publish(part, target)
        finally:
            Path(part).unlink(missing_ok=True)


def restore_backup(source: str, path: str, dialect: Dialect, statements: Mapping[str, Statement]) -> str | None:
    """Put a checked copy of the backup `source` at `path`, and return the path of the former store, which is kept.

    Raise if another process uses the store. This process must not have opened it.
    """
    source, path = str(Path(source).absolute()), str(Path(path).resolve())
    check_environment(path)
    if not Path(source).is_file():
        raise Unavailable("storage_not_found", f"there is no backup {source}; check the path")
    if Path(path).exists() and Path(source).samefile(path):
        raise InvalidRequest("invalid_file", f"{source} is the store itself; name a backup of it")
    with _translated_errors():
        if has_log(source):
            check_log(source)
        part = f"{path}.part-{os.getpid()}"
        try:
            _copy(source, part)
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                copy.row_factory = sqlite3.Row
                require_store(copy, source)
                _check_copy(copy, source, statements)
                migrate(copy, dialect, may_migrate=True)
                status = Path(part).stat()
                adopt(copy, read_file_identity(copy)[1], f"{status.st_dev}:{status.st_ino}")
            return _install(part, path)
        finally:
            Path(part).unlink(missing_ok=True)


def exists_error(target: str) -> Refused:
    """Return the error for a backup whose file exists."""
    return Refused("backup_exists", f"{target} exists; choose another name, or remove the file first", path=target)


def _copy(source: str, part: str) -> None:
    """Copy a database with its log into one new file, without stopping its writers."""
    Path(part).unlink(missing_ok=True)
    create_file(part)
    with closing(connect_read_only(source)) as original, closing(sqlite3.connect(part, isolation_level=None)) as copy:
        original.backup(copy)
        # Without a log, the copy is complete in one file.
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()


def _check_copy(copy: sqlite3.Connection, source: str, statements: Mapping[str, Statement]) -> None:
    copy.row_factory = sqlite3.Row
    if problems := find_damage(copy, statements):
        raise damaged_error(source, problems)


def _publish(part: str, target: str) -> None:
    """Give the file its final name, if that is free, and wait for the disk."""
    _sync(part)
    try:
        os.link(part, target)
    except FileExistsError:
        raise exists_error(target) from None
    _sync(str(Path(target).parent))


def _install(part: str, path: str) -> str | None:
    """Put the file in the place of the store, and keep the former store with its log under another name."""
    if not Path(path).exists() and not Path(path + LOG_SUFFIX).exists():
        _publish(part, path)
        return None
    with _unused(path):
        _sync(part)
        kept = f"{path}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
        if Path(path).exists():
            _copy_permissions(path, part)
            os.link(path, kept)
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
            if Path(path + suffix).exists():
                Path(path + suffix).rename(kept + suffix)
        Path(part).rename(path)
        _sync(str(Path(path).parent))
    return kept


def _copy_permissions(path: str, part: str) -> None:
    """Give the file the mode of the former store and, if this process may do so, its owner."""
    former = Path(path).stat()
    if os.geteuid() == 0:
        os.chown(part, former.st_uid, former.st_gid)
    Path(part).chmod(stat.S_IMODE(former.st_mode))


@contextmanager
def _unused(path: str) -> Iterator[None]:
    """Lock the files of a store inside the block, so that SQLite opens them in no process. Raise if one is open."""
    import fcntl

    locked: list[int] = []
    lock = FileLock(path)
    try:
        for name, (start, length) in ((path, _DATABASE_LOCK), (path + INDEX_SUFFIX, _INDEX_LOCK)):
            if Path(name).exists():
                locked.append(os.open(name, os.O_RDWR | os.O_CLOEXEC))
                fcntl.lockf(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        if Path(path).exists():
            with lock.held(_LOCK_TIMEOUT_S):
                yield
        else:
            yield
    except (BlockingIOError, PermissionError) as error:
        message = f"{path} is in use by another process; stop all programs and workers that use it, then repeat"
        raise Refused("store_in_use", message, path=path) from error
    finally:
        lock.close()
        for file in locked:
            os.close(file)


def _sync(name: str) -> None:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate(error) from error
