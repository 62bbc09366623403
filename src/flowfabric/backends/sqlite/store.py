"""A store in one SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from flowfabric.backends.sqlite.backup import restore_backup, write_backup
from flowfabric.backends.sqlite.checkpoint import Checkpointer
from flowfabric.backends.sqlite.clock import StoreClock, TestClock
from flowfabric.backends.sqlite.connection import MEMORY, check_environment, connect, limit_statements
from flowfabric.backends.sqlite.errors import translate
from flowfabric.backends.sqlite.integrity import find_damage
from flowfabric.backends.sqlite.notify import SqliteNotifier
from flowfabric.backends.sqlite.opening import FileOptions, open_files
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.store_file import StoreFile, connect_read_only
from flowfabric.backends.sqlite.user_connections import async_error, run_joined
from flowfabric.backends.sqlite.writer import Writer, WriterOptions
from flowfabric.core.errors import Unavailable
from flowfabric.store.checks import backup_unsupported_error, find_violations
from flowfabric.store.file_permissions import can_others_read
from flowfabric.store.forks import Forks, check_not_forked, watch_forks
from flowfabric.store.migrations import READ_APPLIED, load_migrations
from flowfabric.store.ports import Body, JoinedBody, Result, SharedBody, StoreInfo
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Dialect, load_statements
from flowfabric.store.transaction import Transaction
from flowfabric.store.user_connections import UserCodeError


def read_store_info(
    connection: sqlite3.Connection, path: str, dialect: Dialect, now: datetime, *, durable: bool
) -> StoreInfo:
    """Return the versions of SQLite and the schema, the durability settings, and whether others can read the file."""
    applied = connection.execute(dialect.translate(READ_APPLIED).text).fetchall()
    [mode] = connection.execute("PRAGMA journal_mode").fetchone()
    return StoreInfo(
        backend="sqlite",
        version=sqlite3.sqlite_version,
        schema_version=applied[-1]["version"],
        settings={
            "journal_mode": mode,
            "synchronous": "full" if durable else "normal",
            "readable_by_others": "on" if can_others_read(path) else "off",
        },
        now=now,
    )


def memory_store_info(now: datetime) -> StoreInfo:
    """Return the information about `:memory:`, whose only connection belongs to the writer."""
    return StoreInfo(
        backend="sqlite",
        version=sqlite3.sqlite_version,
        now=now,
        settings={"journal_mode": "memory"},
        schema_version=load_migrations("flowfabric.backends.sqlite")[-1].version,
    )


DIALECT = Dialect(table_prefix="ff_", numbered=False)
_READERS = 2


async def open_sqlite(
    path: str,
    *,
    clock: TestClock | None = None,
    durable: bool = True,
    statement_timeout_s: float = 30.0,
    may_migrate: bool = True,
    transaction_limit_s: float | None = None,
) -> SqliteStore:
    """Open a store in the file at `path`. Create or migrate the store if necessary."""
    # Opening may wait for other processes and must not block the event loop.
    opening: Future[SqliteStore] = Future()
    opening.set_running_or_notify_cancel()  # A caller that is cancelled does not stop the thread.
    arguments = (path, StoreClock(clock), durable, statement_timeout_s, may_migrate, transaction_limit_s)
    threading.Thread(target=_open_for, args=(opening, *arguments), name="flowfabric-sqlite-open", daemon=True).start()
    try:
        store = await asyncio.wrap_future(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)
        raise
    store.serve(asyncio.get_running_loop())
    return store


class SqliteStore:
    """A store with one writer thread and a few reader threads.

    A `:memory:` database has only one connection, so the writer thread also reads.
    """

    def __init__(
        self, path: str, file: StoreFile | None, writer: Writer, clock: StoreClock, durable: bool, timeout_s: float
    ) -> None:
        self._path = path
        self._file = file
        self._writer = writer
        self._clock = clock
        self._durable = durable
        self._timeout_s = timeout_s
        self._statements = load_statements(DIALECT, "flowfabric.backends.sqlite")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="flowfabric-sqlite-reader")
        self._per_thread = threading.local()
        self._read_connections: list[sqlite3.Connection] = []
        self._forks = Forks.number
        self._closed = False
        self.notifier = SqliteNotifier(writer)
        writer.on_abandoned(self._abandon)
        watch_forks(self)

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the store if this event loop is closed, unless another loop has used the store since."""
        self._writer.serve(loop)

    @property
    def local_clock(self) -> Callable[[], datetime]:
        return self._clock.now

    async def run(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        self._check_usable()
        result: Result = await self._writer.run(body, is_urgent=is_urgent)
        return result

    async def run_shared(self, body: SharedBody[Result]) -> Result:
        self._check_usable()
        try:
            # User code may be slow or break the transaction, so it gets a separate transaction.
            result: Result = await self._writer.run(body, is_alone=True)
        except UserCodeError as raised:
            error = raised.error
        else:
            return result
        raise error

    async def run_single(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        return await self.run(body, is_urgent=is_urgent)

    async def read(self, body: Body[Result]) -> Result:
        self._check_usable()
        if self._path == MEMORY:
            return await self.run(body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, body)

    async def read_single(self, body: Body[Result]) -> Result:
        return await self.read(body)

    async def run_within(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        self._check_usable()
        raise async_error(connection)

    def run_within_sync(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        self._check_usable()
        return run_joined(connection, self._file, self._statements, self._clock, body)

    async def ping(self) -> None:
        await self.read(_do_nothing)

    async def end_stalled_sessions(self) -> int:
        return 0  # The system ends the locks of a process with the process.

    async def vacuum(self) -> bool:
        return True  # SQLite leaves no dead rows.

    async def store_info(self) -> StoreInfo:
        self._check_usable()
        if self._path == MEMORY:
            return memory_store_info(self._clock.now())
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read_info)

    async def find_damage(self) -> list[str]:
        self._check_usable()
        if self._path == MEMORY:
            return await self.read(lambda tx: find_violations(tx.session))
        return await asyncio.to_thread(self._find_damage)

    async def backup(self, file: str) -> None:
        self._check_usable()
        if self._path == MEMORY:
            raise backup_unsupported_error("a store in memory cannot be backed up; use a file")
        await asyncio.to_thread(write_backup, self._path, file, self._statements, self._check_file)

    async def close(self, timeout_s: float | None = None) -> None:
        if self._closed or self._forks != Forks.number:
            return
        waiting = asyncio.wrap_future(self.start_close())
        await asyncio.wait([waiting], timeout=timeout_s)
        if waiting.done():
            waiting.result()

    def start_close(self) -> Future[None]:
        """Start to close the store in another thread."""
        self._closed = True
        # Another process may have locked the file, and a daemon thread does not keep this process from ending.
        closed: Future[None] = Future()
        threading.Thread(target=self._close, args=(closed,), name="flowfabric-sqlite-close", daemon=True).start()
        return closed

    def leave_to_parent(self) -> None:
        """Do nothing. The threads do not exist in the child, and it must not close the connections."""

    def _close(self, closed: Future[None]) -> None:
        try:
            self._close_readers()
            # The writer closes the last connection, because only it knows whether SQLite may then delete the log.
            self._writer.close()
        except BaseException as error:
            closed.set_exception(error)
        else:
            closed.set_result(None)

    def _abandon(self) -> None:
        """Close the store in the writer thread, because its event loop was closed."""
        self._closed = True
        self._close_readers()

    def _close_readers(self) -> None:
        self._readers.shutdown()
        for connection in self._read_connections:
            connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
        check_not_forked(self._forks)

    def _read(self, body: Body[Result]) -> Result:
        try:
            connection = self._reading_connection()
            limit_statements(connection, self._timeout_s)
            connection.execute("BEGIN")
            try:
                now = self._clock.read(connection)
                return run_to_completion(body(Transaction(SqliteSession(connection, self._statements, now))))
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translate(error) from error
        finally:
            self._check_file()

    def _check_file(self) -> None:
        """Raise if the file was replaced. Neither a result nor an error of a read is then reliable."""
        if self._file is not None:
            self._file.check()

    def _find_damage(self) -> list[str]:
        """Check the whole file on a separate connection, which no statement timeout interrupts."""
        try:
            with closing(connect_read_only(self._path)) as connection:
                connection.execute("BEGIN")
                return find_damage(connection, self._statements)
        except sqlite3.Error as error:
            raise translate(error) from error
        finally:
            self._check_file()

    def _read_info(self) -> StoreInfo:
        try:
            connection = self._reading_connection()
            return read_store_info(connection, self._path, DIALECT, self._clock.read(connection), durable=self._durable)
        except sqlite3.Error as error:
            raise translate(error) from error
        finally:
            self._check_file()

    def _reading_connection(self) -> sqlite3.Connection:
        if not hasattr(self._per_thread, "connection"):
            self._per_thread.connection = connect_read_only(self._path)
            self._read_connections.append(self._per_thread.connection)
        connection: sqlite3.Connection = self._per_thread.connection
        return connection


# The writers by process id, file and durability. A forked process must not use those of its parent.
_peers: dict[tuple[object, ...], list[Writer]] = {}


def _open_for(opening: Future[SqliteStore], *arguments: Any) -> None:
    try:
        opening.set_result(_open(*arguments))
    except BaseException as error:
        opening.set_exception(error)


def _close_unused(opening: Future[SqliteStore]) -> None:
    """Close a store whose caller was cancelled while it was opened."""
    if opening.exception() is None:
        opening.result().start_close()


def _open(
    path: str, clock: StoreClock, durable: bool, timeout_s: float, may_migrate: bool, transaction_limit_s: float | None
) -> SqliteStore:
    # Readers open the file later, when the program may have changed its working directory.
    link = path if path == MEMORY else str(Path(path).absolute())
    path = path if path == MEMORY else str(Path(path).resolve())
    check_environment(path)
    statements = load_statements(DIALECT, "flowfabric.backends.sqlite")
    files = open_files(
        path,
        FileOptions(
            link=link,
            durable=durable,
            timeout_s=timeout_s,
            may_migrate=may_migrate,
            dialect=DIALECT,
            statements=statements,
        ),
    )
    checkpointer = Checkpointer(files.connection, files.file, files.lock) if files.file and files.lock else None
    in_memory = path == MEMORY
    options = WriterOptions(
        statements=statements,
        clock=clock,
        timeout_s=timeout_s,
        transaction_limit_s=transaction_limit_s,
        reopen=None if in_memory else partial(connect, path, durable=durable, timeout_s=timeout_s),
        file=files.file,
    )
    is_shared = not in_memory and not clock.is_test
    peers = _peers.setdefault((os.getpid(), path, durable), []) if is_shared else []
    writer = Writer(files.connection, options, checkpointer, peers)
    return SqliteStore(path, files.file, writer, clock, durable, timeout_s)


def restore_sqlite(source: str, path: str) -> str | None:
    """Put a checked copy of a backup at `path`, and return the path of the former store, which is kept."""
    return restore_backup(source, path, DIALECT, load_statements(DIALECT, "flowfabric.backends.sqlite"))


async def _do_nothing(_: Any) -> None:
    return None
