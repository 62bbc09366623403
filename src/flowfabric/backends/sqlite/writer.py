"""The one thread of a process that writes to a SQLite file.

Operations queue up while a commit is under way and then share the next transaction, each inside a savepoint of its
own: one that fails takes nothing back but itself. Callers are answered after the commit that holds their rows.
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
from datetime import datetime
from typing import Any

from flowfabric.backends.sqlite.checkpoint import Checkpointer
from flowfabric.backends.sqlite.connection import limit_statements
from flowfabric.backends.sqlite.errors import translated
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.sharing import SAVEPOINT, SqliteTransaction
from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.driving import drive
from flowfabric.sqlstore.rows import since_1970_us, when
from flowfabric.sqlstore.statements import Statement
from flowfabric.store.news import News, Tell

Clock = Callable[[], datetime]
_MOST_TOGETHER = 200
_WATCH_EVERY_S = 0.02
_log = logging.getLogger("flowfabric.sqlite")


@dataclass(slots=True)
class _Job:
    body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    alone: bool = False
    answer: Any = None
    error: BaseException | None = None


class Writer:
    """Runs bodies in write transactions, in order, many to a commit."""

    def __init__(
        self, connection: sqlite3.Connection, statements: Mapping[str, Statement], clock: Clock,
        timeout_s: float, checkpointer: Checkpointer | None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._statements = statements
        self._clock = clock
        self._timeout_s = timeout_s
        self._checkpointer = checkpointer
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._tell: Tell | None = None
        self._watch: Tell | None = None
        self._seen: int | None = None
        self._looked_at = 0.0
        self._thread = threading.Thread(target=self._work, name="flowfabric-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, body: Callable[[SqliteTransaction], Coroutine[Any, Any, Any]], *, alone: bool = False) -> Any:
        """The body's answer, after the commit that holds what it wrote: with others, or with nothing else."""
        loop = asyncio.get_running_loop()
        job = _Job(body, loop.create_future(), loop, alone)
        with self._wake:
            if self._closing:
                raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
            self._jobs.append(job)
            self._wake.notify()
        return await job.future

    def on_commit(self, tell: Tell) -> None:
        """Calls back in this thread after every commit."""
        self._tell = tell

    def watch(self, tell: Tell | None) -> None:
        """From now on calls back in this thread when another connection has committed; None ends that."""
        with self._wake:
            self._watch, self._seen = tell, None
            self._wake.notify()

    def close(self) -> None:
        """Finishes what is queued, then ends the thread and its connection."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _work(self) -> None:
        jobs: list[_Job] = []
        try:
            while jobs := self._next_jobs():
                news = self._commit_or_fail(jobs)
                for job in jobs:
                    _answer(job)
                if self._tell is not None and news:
                    self._tell(news)
                self._checkpoint()
                if self._watch is not None and time.monotonic() - self._looked_at > _WATCH_EVERY_S:
                    self._look_for_others()
        except BaseException as error:
            _log.exception("the writer thread ends")
            self._give_up(jobs, error)
        finally:
            self._finish()

    def _commit_or_fail(self, jobs: list[_Job]) -> News | None:
        try:
            return self._commit_together(jobs)
        except BaseException as error:
            # What the bodies decided, refusals too, is only as true as their commit.
            for job in jobs:
                job.error = error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return None

    def _give_up(self, jobs: list[_Job], error: BaseException) -> None:
        """The thread cannot go on: nobody may wait for it any more."""
        with self._wake:
            self._closing = True
            waiting = [*jobs, *self._jobs]
            self._jobs.clear()
        for job in waiting:
            job.error = error
            _answer(job)

    def _next_jobs(self) -> list[_Job]:
        with self._wake:
            while not self._jobs and not self._closing:
                if not self._wake.wait(None if self._watch is None else _WATCH_EVERY_S):
                    self._look_for_others()
            jobs = [self._jobs.popleft()] if self._jobs else []
            while jobs and not jobs[0].alone and self._jobs and not self._jobs[0].alone and len(jobs) < _MOST_TOGETHER:
                jobs.append(self._jobs.popleft())
            return jobs

    def _look_for_others(self) -> None:
        """Tells if another connection has committed: this number changes by nothing else."""
        try:
            [seen] = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return
        # The first look has nothing to compare with, and something may have happened before it.
        if self._watch is not None and seen != self._seen:
            self._watch(News(anything=True))
        self._seen = seen
        self._looked_at = time.monotonic()

    def _commit_together(self, jobs: list[_Job]) -> News:
        limit_statements(self._connection, self._timeout_s)
        self._connection.execute("BEGIN IMMEDIATE")
        changes = self._connection.total_changes
        now = self._read_clock()
        transaction = SqliteTransaction(SqliteSession(self._connection, self._statements, now), self._connection)
        for job in jobs:
            self._run_in_savepoint(job, transaction)
        if self._connection.total_changes != changes:
            self._connection.execute("UPDATE ff_clock SET newest_at = ?", (since_1970_us(now),))
        self._connection.execute("COMMIT")
        return transaction.news

    def _read_clock(self) -> datetime:
        """The host's clock, but never earlier than anything this file has seen."""
        [newest] = self._connection.execute("SELECT newest_at FROM ff_clock").fetchone()
        seen: datetime = when(newest)
        return max(self._clock(), seen)

    def _run_in_savepoint(self, job: _Job, transaction: SqliteTransaction) -> None:
        self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            job.answer = drive(job.body(transaction))
        except BaseException as error:
            if not self._connection.in_transaction:
                raise  # SQLite gave up the whole transaction, so nothing of the batch is left.
            job.error = error
            self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")
            # Nobody may be told of an end that was taken back; whoever waits for one of the others looks.
            transaction.news.completed.clear()
        self._connection.execute(f"RELEASE {SAVEPOINT}")

    def _checkpoint(self) -> None:
        try:
            if self._checkpointer:
                self._checkpointer.checkpoint_if_grown()
        except (sqlite3.Error, OSError):
            _log.warning(
                "the log could not be moved into the file; it stays longer until the next commit", exc_info=True
            )

    def _finish(self) -> None:
        if self._checkpointer:
            self._checkpointer.close()
        self._connection.close()


def _answer(job: _Job) -> None:
    """Hands the outcome to the caller's event loop, if that still runs."""
    try:
        job.loop.call_soon_threadsafe(_settle, job)
    except RuntimeError:
        return  # The loop is closed: nobody waits for this answer any more.


def _settle(job: _Job) -> None:
    if job.future.done():
        return
    if job.error is not None:
        job.future.set_exception(translated(job.error))
    else:
        job.future.set_result(job.answer)
