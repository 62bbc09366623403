"""The thread of a process that writes to a SQLite file.

Operations queue up during a commit and then share the next transaction. Each runs in its own savepoint, so a failed
operation undoes only its own writes. A caller gets its result after the commit that contains its rows.
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
from flowfabric.backends.sqlite.hot_path import SqliteTransaction
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.user_connections import SAVEPOINT
from flowfabric.core.errors import Unavailable
from flowfabric.store.commit_hints import CommitHints, HintHandler
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Statement

_MAX_BATCH = 200
_WATCH_EVERY_S = 0.02
_log = logging.getLogger("flowfabric.sqlite")


@dataclass(slots=True)
class _Job:
    body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    is_alone: bool = False
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Runs operations in order in write transactions. One transaction may contain many operations."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        statements: Mapping[str, Statement],
        clock: StoreClock,
        timeout_s: float,
        checkpointer: Checkpointer | None,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._clock = clock
        self._timeout_s = timeout_s
        self._checkpointer = checkpointer
        self._jobs: deque[_Job] = deque()
        self._condition = threading.Condition()
        self._closing = False
        self._on_commit: HintHandler | None = None
        self._on_foreign_commit: HintHandler | None = None
        self._data_version: int | None = None
        self._checked_at = 0.0
        self._thread = threading.Thread(target=self._work, name="flowfabric-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(
        self, body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]], *, is_alone: bool = False
    ) -> Any:
        """Run `body` and return its result after the commit. With `is_alone`, `body` has a separate transaction."""
        loop = asyncio.get_running_loop()
        job = _Job(body, loop.create_future(), loop, is_alone)
        with self._condition:
            if self._closing:
                raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
            self._jobs.append(job)
            self._condition.notify()
        return await job.future

    def on_commit(self, handler: HintHandler) -> None:
        """Call `handler` in the writer thread after every commit."""
        self._on_commit = handler

    def on_foreign_commit(self, handler: HintHandler | None) -> None:
        """Call `handler` in the writer thread after commits of other connections. None turns this off."""
        with self._condition:
            self._on_foreign_commit, self._data_version = handler, None
            self._condition.notify()

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
        except BaseException as error:
            _log.exception("Writer thread failed")
            self._fail_all(jobs, error)
        finally:
            self._finish()

    def _commit_or_fail(self, jobs: list[_Job]) -> CommitHints | None:
        try:
            return self._commit_batch(jobs)
        except BaseException as error:
            # Without the commit no result is valid, not even an error that a body raised.
            for job in jobs:
                job.error = error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return None

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
                if not self._condition.wait(None if self._on_foreign_commit is None else _WATCH_EVERY_S):
                    self._check_foreign_commits()
            jobs = [self._jobs.popleft()] if self._jobs else []
            while (
                jobs and not jobs[0].is_alone and self._jobs and not self._jobs[0].is_alone and len(jobs) < _MAX_BATCH
            ):
                jobs.append(self._jobs.popleft())
            return jobs

    def _check_foreign_commits(self) -> None:
        """Call the handler if another connection has committed. SQLite's `data_version` then has a new value."""
        try:
            [version] = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return
        # The first check has no earlier version to compare with, so it always calls the handler.
        if self._on_foreign_commit is not None and version != self._data_version:
            self._on_foreign_commit(CommitHints(anything=True))
        self._data_version = version
        self._checked_at = time.monotonic()

    def _commit_batch(self, jobs: list[_Job]) -> CommitHints:
        limit_statements(self._connection, self._timeout_s)
        self._connection.execute("BEGIN IMMEDIATE")
        changes = self._connection.total_changes
        now = self._clock.read(self._connection)
        transaction = SqliteTransaction(SqliteSession(self._connection, self._statements, now), self._connection)
        for job in jobs:
            self._run_in_savepoint(job, transaction)
        if self._connection.total_changes != changes:
            self._clock.write(self._connection, now)
        self._connection.execute("COMMIT")
        return transaction.hints

    def _run_in_savepoint(self, job: _Job, transaction: SqliteTransaction) -> None:
        self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            job.result = run_to_completion(job.body(transaction))
        except BaseException as error:
            if not self._connection.in_transaction:
                raise  # SQLite rolled back the whole transaction, so the whole batch is lost.
            job.error = error
            self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")
            # The outcomes of this savepoint are undone. The other outcomes are dropped too, so callers read them from
            # the store.
            transaction.hints.completed.clear()
        self._connection.execute(f"RELEASE {SAVEPOINT}")

    def _checkpoint(self) -> None:
        try:
            if self._checkpointer:
                self._checkpointer.checkpoint_if_grown()
        except (sqlite3.Error, OSError):
            _log.warning("Checkpoint failed, retrying after the next commit", exc_info=True)

    def _finish(self) -> None:
        if self._checkpointer:
            self._checkpointer.close()
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
