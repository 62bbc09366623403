"""The writer's connection, and its loan to the user code of a `step.tx`.

User code sees the connection as `sqlite3` creates it, with rows that are tuples. An authorizer refuses statements that
would end the transaction, which holds the file's write lock, or change the connection. `close` and `set_authorizer` are
refused too, and so is `backup`, which would wait for the end of the transaction in which it runs.

```text
lend ──► the code runs ──► it returns before the limit ──► the engine records the step and commits
              │
              │ 1 s: a warning is logged
              ▼ the limit: a watching thread interrupts the running statement and rolls back
         every later call on the connection raises `transaction_too_long`, and so does the step
```

The watching thread rolls back while the code may be asleep, so that other writers get the file at the limit. Two
threads must not use one connection at the same time. So each call of the lent connection takes the lock of the loan.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from flowfabric.core.errors import Refused

Result = TypeVar("Result")
SAVEPOINT = "operation"
_FORBIDDEN = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_HARMLESS_PRAGMAS = frozenset({"table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"})
_WARN_AFTER_S = 1.0
_INTERRUPT_EVERY_S = 0.05
_log = logging.getLogger("flowfabric.sqlite")


class WriterConnection(sqlite3.Connection):
    """The connection of a writer thread. While it is lent to user code, its class is `_LentConnection`."""

    @contextmanager
    def lend(self, limit_s: float) -> Iterator[Loan]:
        """Lend the connection to user code inside the block, for at most `limit_s`.

        When the block has ended, raise `transaction_too_long` if it took longer. The transaction is then rolled back.
        """
        loan = Loan(self, limit_s)
        ours = self.row_factory, self.text_factory
        self.row_factory, self.text_factory = None, str
        self.set_authorizer(loan.authorize)
        vars(self)["loan"] = loan
        self.__class__ = _LentConnection  # type: ignore[assignment]
        try:
            with loan.watched():
                yield loan
        finally:
            self.__class__ = WriterConnection
            del vars(self)["loan"]
            with suppress(sqlite3.ProgrammingError):  # The code closed the connection after all.
                self.set_authorizer(None)
                self.row_factory, self.text_factory = ours


class _LentConnection(sqlite3.Connection):
    """The class of the connection while user code has it. Its calls take the lock of the loan."""

    loan: Loan

    def execute(self, *arguments: Any) -> Any:
        return self.loan.call(super().execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.loan.call(super().executemany, *arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self.loan.call(super().executescript, *arguments)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_LentCursor if factory in (None, sqlite3.Cursor) else factory)

    def close(self) -> None:
        raise sqlite3.ProgrammingError("not authorized: only the engine closes the connection that it lends to step.tx")

    def backup(self, *_: Any, **__: Any) -> None:
        raise sqlite3.ProgrammingError("not authorized: a backup would wait for its own step.tx; use engine.backup")

    def set_authorizer(self, *_: Any, **__: Any) -> None:
        raise sqlite3.ProgrammingError("not authorized: the connection that is lent to step.tx keeps its authorizer")


class _LentCursor(sqlite3.Cursor):
    """A cursor whose calls take the lock of the loan, and fail after the limit."""

    def execute(self, *arguments: Any) -> Any:
        return self._loan.call(super().execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._loan.call(super().executemany, *arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self._loan.call(super().executescript, *arguments)

    def fetchone(self) -> Any:
        return self._loan.call(super().fetchone)

    def fetchmany(self, *arguments: Any, **options: Any) -> Any:
        return self._loan.call(super().fetchmany, *arguments, **options)

    def fetchall(self) -> Any:
        return self._loan.call(super().fetchall)

    def __next__(self) -> Any:
        return self._loan.call(super().__next__)

    @property
    def _loan(self) -> Loan:
        loan = vars(self.connection).get("loan")
        if loan is None:
            raise sqlite3.ProgrammingError("the step.tx that this cursor belongs to has ended")
        assert isinstance(loan, Loan), "only `lend` sets this attribute"
        return loan


class Loan:
    """One loan of the writer's connection: its time limit, and the lock of its calls."""

    def __init__(self, connection: WriterConnection, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._calls = threading.RLock()
        self._ended = threading.Event()
        self._rolling_back = False
        self.is_over = False

    def call(self, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Make one call on the connection. After the limit, raise instead, and also if SQLite has rolled back."""
        with self._calls:
            if self.is_over:
                raise self._error()
            if not self._connection.in_transaction:
                raise sqlite3.OperationalError("an earlier error rolled back the transaction; do not catch it")
            try:
                return call(*arguments, **options)
            except sqlite3.OperationalError as error:
                if self.is_over:
                    raise self._error() from error
                raise

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Refuse statements that end the transaction or change the connection."""
        forbidden = (action in _FORBIDDEN or self.is_over) and not self._rolling_back
        forbidden |= action == sqlite3.SQLITE_SAVEPOINT and (second or "").lower() == SAVEPOINT
        forbidden |= action == sqlite3.SQLITE_PRAGMA and first not in _HARMLESS_PRAGMAS
        return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Enforce the limit while the block runs."""
        watch = threading.Thread(target=self._watch, name="flowfabric-sqlite-loan", daemon=True)
        watch.start()
        error: BaseException | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        finally:
            with self._calls:
                self._ended.set()
            watch.join()
        if self.is_over:
            raise self._error() from error
        if error is not None:
            raise error

    def _watch(self) -> None:
        if self._limit_s > _WARN_AFTER_S and not self._ended.wait(_WARN_AFTER_S):
            text = "A step.tx has held the only write lock of the store for %g s, and is stopped after %g s"
            _log.warning(text, _WARN_AFTER_S, self._limit_s)
        if self._ended.wait(max(0.0, self._began + self._limit_s - time.monotonic())):
            return
        while not self._calls.acquire(timeout=_INTERRUPT_EVERY_S):
            self._stop_statement()
        try:
            if not self._ended.is_set():
                self._roll_back()
        finally:
            self._calls.release()

    def _stop_statement(self) -> None:
        """Interrupt the running statement. The next one is refused, even if this one ended at the same moment."""
        self.is_over = not self._ended.is_set()
        if self.is_over:
            self._connection.interrupt()

    def _roll_back(self) -> None:
        self.is_over = self._rolling_back = True
        try:
            self._connection.interrupt()
            if self._connection.in_transaction:
                sqlite3.Cursor(self._connection).execute("ROLLBACK").close()
        except sqlite3.Error as error:
            _log.warning("A step.tx that took too long could not be rolled back yet: %s", error)
        finally:
            self._rolling_back = False

    def _error(self) -> Refused:
        message = (
            f"step.tx took longer than {self._limit_s:g} s, for which it blocked every other write of the SQLite store,"
            " and nothing of it was written; move slow work out of it, or set transaction_limit"
        )
        return Refused("transaction_too_long", message, limit_s=self._limit_s)
