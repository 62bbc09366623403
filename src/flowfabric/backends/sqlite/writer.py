"""The thread of an engine that writes to a SQLite file.

Operations queue up during a commit and then share the next transaction. Each runs in its own savepoint, so a failed
operation undoes only its own writes. A caller gets its result after the commit that contains its rows, and after the
writer has checked that the rows are in the file at the path (see `store_file.py`).

Renewals of leases are urgent, because leases that are not renewed in time are lost:

- They run before the other queued operations, even if they arrive while the writer waits for a blocked file.
- The engine that renews leases gives them to another engine's writer on the same file in this process. So they share
  its commits, also if every commit is slow. A writer that runs user code or a checkpoint gets none.
- A writer that has held the file for long pauses, so that the writers of other processes get a turn. They try again at
  least every 100 ms.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from flowfabric.backends.sqlite.checkpoint import Checkpointer
from flowfabric.backends.sqlite.clock import StoreClock
from flowfabric.backends.sqlite.connection import limit_statements
from flowfabric.backends.sqlite.errors import translate
from flowfabric.backends.sqlite.hot_path import SqliteTransaction, is_in_transaction
from flowfabric.backends.sqlite.lending import SAVEPOINT, WriterConnection
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.store_file import StoreFile
from flowfabric.core.errors import Unavailable
from flowfabric.store.commit_hints import CommitHints, HintHandler
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Statement

_MAX_BATCH = 200
_WATCH_EVERY_S = 0.02
_CHECK_LOOP_EVERY_S = 1.0
_CHECK_FILE_EVERY_S = 1.0
_CHECK_AGAIN_AFTER_S = 0.002
_LONG_HOLD_S = 0.5
_TURN_S = 0.11
_MAX_SKIPPED_TURNS = 2
_log = logging.getLogger("flowfabric.sqlite")


@dataclass(slots=True)
class _Job:
    body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    is_alone: bool = False
    is_urgent: bool = False
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How a writer works. A store in memory has no `file`, and no `reopen`, since it is gone with its connection."""

    statements: Mapping[str, Statement]
    clock: StoreClock
    timeout_s: float
    transaction_limit_s: float | None
    reopen: Callable[[], WriterConnection] | None
    file: StoreFile | None


class Writer:
    """Runs operations in order in write transactions. One transaction may contain many operations.

    `peers` are the writers of this process on the same file, including this one. They share one list.
    """

    def __init__(
        self,
        connection: WriterConnection,
        options: WriterOptions,
        checkpointer: Checkpointer | None,
        peers: list[Writer],
    ) -> None:
        self._connection = connection
        self._options = options
        self._checkpointer = checkpointer
        self._peers = peers
        self._is_occupied = False
        self._held_s = 0.0
        self._skipped_turns = 0
        self._jobs: deque[_Job] = deque()
        self._condition = threading.Condition()
        self._closing = False
        self._on_commit: HintHandler | None = None
        self._on_foreign_commit: HintHandler | None = None
        self._on_abandoned: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._data_version: int | None = None
        self._checked_at = 0.0
        self._file_checked_at = 0.0
        self._thread = threading.Thread(target=self._work, name="flowfabric-sqlite-writer", daemon=True)
        self._thread.start()
        self._peers.append(self)

    async def run(
        self,
        body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]],
        *,
        is_alone: bool = False,
        is_urgent: bool = False,
    ) -> Any:
        """Run `body` and return its result after the commit.

        With `is_alone`, `body` has a separate transaction. With `is_urgent`, `body` runs before the other queued ones.
        """
        self._loop = loop = asyncio.get_running_loop()
        job = _Job(body, loop.create_future(), loop, is_alone, is_urgent)
        if not (is_urgent and self._give_to_peer(job)) and not self._enqueue(job):
            raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
        return await job.future

    def _enqueue(self, job: _Job, *, if_free: bool = False) -> bool:
        """Queue a job. Return False if the writer is closed or, with `if_free`, runs user code or a checkpoint."""
        with self._condition:
            if self._closing or (if_free and self._is_occupied):
                return False
            if job.is_urgent:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._condition.notify()
        return True

    def _give_to_peer(self, job: _Job) -> bool:
        """Queue an urgent job of this open writer at the oldest writer on the file, unless that one is occupied."""
        oldest = next(iter(self._peers), self)
        return oldest is not self and not self._closing and oldest._enqueue(job, if_free=True)

    def on_commit(self, handler: HintHandler) -> None:
        """Call `handler` in the writer thread after every commit."""
        self._on_commit = handler

    def on_foreign_commit(self, handler: HintHandler | None) -> None:
        """Call `handler` in the writer thread after commits of other connections. None turns this off."""
        with self._condition:
            self._on_foreign_commit, self._data_version = handler, None
            self._condition.notify()

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the thread if this event loop is closed, unless another loop has called `run` since."""
        self._loop = loop

    def on_abandoned(self, handler: Callable[[], None]) -> None:
        """Call `handler` in the writer thread before it ends because its event loop was closed."""
        self._on_abandoned = handler

    def close(self) -> None:
        """Finish the queued operations, then end the thread and close its connection."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _work(self) -> None:
        jobs: list[_Job] = []
        try:
            while jobs := self._next_jobs():
                hints = self._commit_or_fail(jobs)
                for job in jobs:
                    _deliver(job)
                if self._on_commit is not None and hints:
                    self._on_commit(hints)
                self._checkpoint()
                if self._on_foreign_commit is not None and time.monotonic() - self._checked_at > _WATCH_EVERY_S:
                    self._check_foreign_commits()
                self._give_turn()
        except BaseException as error:
            _log.exception("Writer thread failed")
            self._fail_all(jobs, error)
        finally:
            self._finish()

    def _give_turn(self) -> None:
        """Pause after a long transaction, so that other processes get the file. Renewals may skip the pause twice."""
        if self._held_s <= _LONG_HOLD_S or self._checkpointer is None:
            return
        with self._condition:
            has_urgent = bool(self._jobs) and self._jobs[0].is_urgent
        if has_urgent and self._skipped_turns < _MAX_SKIPPED_TURNS:
            self._skipped_turns += 1
        else:
            self._skipped_turns = 0
            time.sleep(_TURN_S)

    def _commit_or_fail(self, jobs: list[_Job]) -> CommitHints | None:
        try:
            return self._commit_batch(jobs)
        except BaseException as error:
            # Without the commit no result is valid, not even an error that a body raised.
            for job in jobs:
                job.error = error
            self._roll_back()
            return None
        finally:
            self._is_occupied = False

    def _roll_back(self) -> None:
        """Roll back the failed transaction. If user code has closed the connection, open another one."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.ProgrammingError:
            if self._options.reopen is None:
                raise  # The store in memory is gone.
            self._reopen(self._options.reopen)

    def _reopen(self, open_connection: Callable[[], WriterConnection]) -> None:
        try:
            self._check_file()  # A connection to a file that replaced this one must not be closed as its last one.
            self._connection = open_connection()
        except (sqlite3.Error, Unavailable) as error:
            _log.warning("Writer lost its connection, and retries to open one with the next call: %s", error)
            return
        self._data_version = None
        if self._checkpointer is not None:
            self._checkpointer.use(self._connection)

    def _fail_all(self, jobs: list[_Job], error: BaseException) -> None:
        """Fail all callers, because the thread cannot continue."""
        with self._condition:
            self._closing = True
            pending = [*jobs, *self._jobs]
            self._jobs.clear()
        for job in pending:
            job.error = error
            _deliver(job)

    def _next_jobs(self) -> list[_Job]:
        with self._condition:
            while not self._jobs and not self._closing:
                if not self._condition.wait(_CHECK_LOOP_EVERY_S if self._on_foreign_commit is None else _WATCH_EVERY_S):
                    self._check_idle()
            jobs = [self._jobs.popleft()] if self._jobs else []
            while (
                jobs and not jobs[0].is_alone and self._jobs and not self._jobs[0].is_alone and len(jobs) < _MAX_BATCH
            ):
                jobs.append(self._jobs.popleft())
            return jobs

    def _check_idle(self) -> None:
        """Stop if the event loop of the callers was closed under the engine. Otherwise look for foreign commits."""
        if self._loop is not None and self._loop.is_closed():
            self._closing = True
            if self._on_abandoned is not None:
                self._on_abandoned()
        elif self._on_foreign_commit is not None:
            self._check_foreign_commits()

    def _check_foreign_commits(self) -> None:
        """Call the handler if another connection has committed. SQLite's `data_version` then has a new value."""
        try:
            [version] = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return
        # The first check has no earlier version to compare with, so it always calls the handler.
        if self._on_foreign_commit is not None and (version != self._data_version or self._finds_replaced_file()):
            self._on_foreign_commit(CommitHints(anything=True))
        self._data_version = version
        self._checked_at = time.monotonic()

    def _commit_batch(self, jobs: list[_Job]) -> CommitHints:
        limit_statements(self._connection, self._options.timeout_s)
        self._held_s = 0.0
        self._connection.execute("BEGIN IMMEDIATE")
        # The wait for the write lock may have been long, so check now. A process that opens a replaced file waits for
        # this lock before it writes.
        self._check_file()
        began = time.monotonic()
        self._add_urgent(jobs)
        changes = self._connection.total_changes
        now = self._options.clock.read(self._connection)
        session = SqliteSession(self._connection, self._options.statements, now)
        transaction = SqliteTransaction(session, self._connection, self._options.transaction_limit_s)
        for job in jobs:
            self._run_in_savepoint(job, transaction)
        if self._connection.total_changes != changes:
            self._options.clock.write(self._connection, now)
        if time.monotonic() - began > _CHECK_AGAIN_AFTER_S:
            # Without the index of the log, which somebody may have deleted, the write lock excludes no new process.
            self._check_file()
        self._connection.execute("COMMIT")
        self._check_file()  # Only after this check, the callers get their results.
        self._held_s = time.monotonic() - began
        return transaction.hints

    def _finds_replaced_file(self) -> bool:
        """Return whether the file was replaced, but look only once per second. Then the listeners read and fail."""
        file = self._options.file
        if file is None or time.monotonic() - self._file_checked_at < _CHECK_FILE_EVERY_S:
            return False
        self._file_checked_at = time.monotonic()
        return not file.is_intact()

    def _check_file(self) -> None:
        if self._options.file is not None:
            self._options.file.check()

    def _add_urgent(self, jobs: list[_Job]) -> None:
        """Put urgent jobs before the jobs of this transaction. A job that must be alone then waits for the next one."""
        with self._condition:
            urgent = self._take_urgent()
            if urgent and jobs[0].is_alone:
                self._jobs.appendleft(jobs.pop())
            jobs[:0] = urgent
            self._is_occupied = jobs[0].is_alone

    def _take_urgent(self) -> list[_Job]:
        urgent: list[_Job] = []
        while self._jobs and self._jobs[0].is_urgent:
            urgent.append(self._jobs.popleft())
        return urgent

    def _run_in_savepoint(self, job: _Job, transaction: SqliteTransaction) -> None:
        self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            job.result = run_to_completion(job.body(transaction))
        except BaseException as error:
            if not is_in_transaction(self._connection):
                raise  # SQLite rolled back the whole transaction, so the whole batch is lost.
            job.error = error
            self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")
            # The outcomes of this savepoint are undone. The other outcomes are dropped too, so callers read them from
            # the store.
            transaction.hints.completed.clear()
        self._connection.execute(f"RELEASE {SAVEPOINT}")

    def _checkpoint(self) -> None:
        self._is_occupied = True
        try:
            if self._checkpointer:
                self._checkpointer.checkpoint_if_grown()
        except (sqlite3.Error, OSError):
            _log.warning("Checkpoint failed, retrying after the next commit", exc_info=True)
        finally:
            self._is_occupied = False

    def _finish(self) -> None:
        self._peers.remove(self)
        if self._checkpointer:
            self._checkpointer.close()
        else:
            self._connection.close()


def _deliver(job: _Job) -> None:
    """Set the outcome of the job in the caller's event loop, if that loop still runs."""
    try:
        job.loop.call_soon_threadsafe(_set_outcome, job)
    except RuntimeError:
        return  # The loop is closed, so no caller waits.


def _set_outcome(job: _Job) -> None:
    if job.future.done():
        return
    if job.error is not None:
        job.future.set_exception(translate(job.error))
    else:
        job.future.set_result(job.result)
