"""The four protocols that a backend implements: `Store`, `Session`, `Notifier` and `NotificationSource`.

`Session` is defined in `store/session.py` to avoid a circular import: the aggregate stores need `Session`, and `Store`
needs the aggregate stores.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from flowfabric.store.commit_hints import CommitHints, HintHandler
from flowfabric.store.transaction import JoinedTransaction, SharedTransaction, Transaction

Result = TypeVar("Result")
Body = Callable[[Transaction], Coroutine[Any, Any, Result]]
SharedBody = Callable[[SharedTransaction], Coroutine[Any, Any, Result]]
JoinedBody = Callable[[JoinedTransaction], Coroutine[Any, Any, Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """The database product and version, the schema version, the durability settings and the store's time.

    `lax` names the roles and databases of a PostgreSQL server that turn `synchronous_commit` off. `dead_rows` is about
    how many rows of executions PostgreSQL has still to clean up, and `vacuum_blockers` name what keeps it from that.
    """

    backend: str
    version: str
    schema_version: int
    settings: Mapping[str, str]
    now: datetime
    lax: tuple[str, ...] = ()
    dead_rows: int = 0
    vacuum_blockers: tuple[str, ...] = ()


class Store(Protocol):
    """A database that runs operations in transactions."""

    @property
    def notifier(self) -> Notifier:
        """The notifier that reports the commits of this store."""

    @property
    def local_clock(self) -> Callable[[], datetime] | None:
        """A function that returns the store's time without a query, or None if the time is on a server."""

    async def run(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        """Run `body` in one write transaction and return its result. After a conflict, run it again from the start.

        A store with one writer runs an urgent body before all other queued bodies.
        """

    async def run_shared(self, body: SharedBody[Result]) -> Result:
        """Run a `body` that calls user code on the engine's connection. Raise exceptions of user code unchanged."""

    async def run_single(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        """Run a `body` that needs no explicit transaction, otherwise like `run`.

        The body runs one statement, or reads first and then writes by one guarded statement.
        """

    async def read(self, body: Body[Result]) -> Result:
        """Run a `body` that only reads; all its statements see one snapshot."""

    async def read_single(self, body: Body[Result]) -> Result:
        """Run a `body` that runs exactly one reading statement, which may read for several requests."""

    async def run_within(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        """Run `body` once in the open transaction of the caller's asynchronous connection.

        With `savepoint`, an error undoes the writes of the body. A body that raises only before it writes needs no
        savepoint.
        """

    def run_within_sync(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        """Run `body` as `run_within` does, on a synchronous connection and in the caller's thread."""

    async def ping(self) -> None:
        """Raise if the database does not respond."""

    async def end_stalled_sessions(self) -> int:
        """End the sessions of vanished processes that stopped in the middle of a statement. Return their number."""

    async def vacuum(self) -> bool:
        """Remove dead rows, unless another process is doing so. Return False if this role may not."""

    async def store_info(self) -> StoreInfo:
        """Return the version and the settings of the database."""

    async def find_damage(self) -> list[str]:
        """Check all stored data, and return one sentence per problem."""

    async def backup(self, file: str) -> None:
        """Write a checked copy of the store to a new file. Raise `InvalidRequest` if the database has its own tool."""

    async def close(self, timeout_s: float | None = None) -> None:
        """Close all connections; later calls raise. Wait at most `timeout_s` for a database that does not respond."""


class Notifier(Protocol):
    """The part of a store that reports commits to this process and to other processes."""

    def on_commit(self, handler: HintHandler) -> None:
        """Call `handler` after every commit of this store that has hints, in any thread."""

    @property
    def can_announce(self) -> bool:
        """True if other processes learn of a commit only by `announce`."""

    async def announce(self, hints: CommitHints) -> None:
        """Send hints to other processes."""

    def source(self) -> NotificationSource | None:
        """Return the source of hints from other processes, or None if callers must poll."""


class NotificationSource(Protocol):
    """A source of hints from other processes."""

    async def listen(self, handler: HintHandler, on_alive: Callable[[datetime | None], None]) -> None:
        """Call `handler` with every hint until the connection breaks, then raise.

        Call `on_alive` whenever the connection has proved to work, with the store's time if it is known. Hints sent
        before the first call of `on_alive` may be missing.
        """
