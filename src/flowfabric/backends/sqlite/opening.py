"""Open the files of a store: check that they belong together, migrate them, and check a store that was copied.

    lock ──► does the log belong to the file? ──► migrate ──► same file as last time? ──► unlock
                                                                   │ no
                                                                   ▼
                                                    check everything once, then remember this file

A store remembers the file that it was last written in. A different file is a copy, or was moved from another disk. A
copy that was made while the store was in use may be damaged, so the whole store is checked once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from flowfabric.backends.sqlite.checkpoint import FileLock
from flowfabric.backends.sqlite.connection import MEMORY, connect, use_write_ahead_log
from flowfabric.backends.sqlite.errors import translate
from flowfabric.backends.sqlite.integrity import damaged_error, find_broken_pages, find_broken_rows
from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.backends.sqlite.log_check import check_log, has_log, has_lost_log, orphaned_log_error
from flowfabric.backends.sqlite.migrate import migrate, read_file_identity, require_store
from flowfabric.backends.sqlite.store_file import StoreFile, connect_read_only, create_file, replaced_error
from flowfabric.store.file_permissions import warn_if_readable
from flowfabric.store.migrations import store_not_found_error
from flowfabric.store.statements import Dialect, Statement

_log = logging.getLogger("flowfabric.sqlite")
_BEGIN_ERA = """
    UPDATE ff_store
    SET era = era + 1, known_id = MAX(trimmed_id, COALESCE((SELECT MAX(id) FROM ff_event), 0))
"""
_ADD_ERA = """
    INSERT INTO ff_era (number, start_id, noted_at)
    SELECT era, known_id, (SELECT newest_at FROM ff_clock) FROM ff_store
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How to open a file. `link` is its path as the caller named it, which may contain symbolic links."""

    link: str
    durable: bool
    timeout_s: float
    may_migrate: bool
    dialect: Dialect
    statements: Mapping[str, Statement]


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The writer's connection to a store, and its files and lock. A store in memory has neither files nor a lock."""

    connection: WriterConnection
    file: StoreFile | None
    lock: FileLock | None


def open_files(path: str, options: FileOptions) -> OpenFiles:
    """Open the store at an absolute path without links, or in memory. Create or migrate it if necessary and allowed."""
    try:
        if path == MEMORY:
            return _open_memory(options)
        if options.may_migrate:
            _create(path)
        else:
            _require_store(path)
        lock = FileLock(path)
        try:
            with lock.held(options.timeout_s):
                files = _open_locked(path, lock, options)
        except BaseException:
            lock.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise translate(error) from error
    warn_if_readable(path)
    return files


def adopt(connection: sqlite3.Connection, former: str | None, identity: str) -> None:
    """Remember the file that contains the store now.

    If the store was in another file before, this is a copy, and its history may have gone back. So a new era of event
    positions begins: subscribers may have read events that the copy does not have, and that it will number again.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("UPDATE ff_store SET file = ?", (identity,))
        if former is not None:
            connection.execute(_BEGIN_ERA)
            connection.execute(_ADD_ERA)
        connection.execute("UPDATE ff_clock SET previous_at = newest_at")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if former is not None:
        _log.warning("The store was copied or moved from another file, and was checked; no damage was found")


def _open_memory(options: FileOptions) -> OpenFiles:
    connection = connect(MEMORY, durable=options.durable, timeout_s=options.timeout_s)
    migrate(connection, options.dialect, options.may_migrate)
    return OpenFiles(connection, None, None)


def _create(path: str) -> None:
    """Create the file if it is missing. Raise if only its log is there, since SQLite would delete the log."""
    if not os.path.exists(path):  # noqa: PTH110 - a Path raises if the name is too long
        if has_log(path):
            raise orphaned_log_error(path)
        create_file(path)


def _require_store(path: str) -> None:
    """Raise if there is no store, before anything is written next to the path."""
    if not Path(path).exists():
        raise store_not_found_error(f"there is no store at {path}", f"--store {shlex.quote(path)}")
    connection = connect_read_only(path)
    try:
        require_store(connection, path)
    finally:
        connection.close()


def _open_locked(path: str, lock: FileLock, options: FileOptions) -> OpenFiles:
    is_doubtful = not check_log(path) if has_log(path) else has_lost_log(path)
    if is_doubtful and not has_log(path):
        _check_alone(path)
    before = os.stat(path)  # noqa: PTH116 - as in `StoreFile`
    file = StoreFile(path, options.link)
    connection = connect(path, durable=options.durable, timeout_s=options.timeout_s)
    try:
        use_write_ahead_log(connection, path, options.timeout_s)
        file.open_guard()
        _prepare(connection, file, before, options, is_doubtful=is_doubtful)
    except BaseException as error:
        file.close(connection, may_clean_up=False)
        if isinstance(error, sqlite3.Error | OSError) and not _is_same_file(path, before):
            raise replaced_error(path) from error
        raise
    return OpenFiles(connection, file, lock)


def _check_alone(path: str) -> None:
    """Raise if the database is damaged without its log.

    SQLite creates a new log when it opens the file, and then no later process can see that the former log was lost. So
    this check comes first.
    """
    with closing(connect_read_only(path, without_log=True)) as connection:
        if problems := find_broken_pages(connection):
            raise damaged_error(path, problems)


def _is_same_file(path: str, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(before, Path(path).stat())
    except FileNotFoundError:
        return False


def _prepare(
    connection: sqlite3.Connection, file: StoreFile, before: os.stat_result, options: FileOptions, *, is_doubtful: bool
) -> None:
    """Migrate the store and remember its file. Raise if the file is another one than last time, and damaged."""
    has_store, former = read_file_identity(connection)
    must_check = has_store and (is_doubtful or former != f"{before.st_dev}:{before.st_ino}")
    if must_check and (problems := find_broken_pages(connection)):
        raise damaged_error(file.path, problems)
    migrate(connection, options.dialect, options.may_migrate)
    if must_check and (problems := find_broken_rows(connection, options.statements)):
        raise damaged_error(file.path, problems)
    file.remember(before)
    if former != file.identity:
        adopt(connection, former, file.identity)
        file.check()
