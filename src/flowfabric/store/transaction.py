"""What an operation gets: one transaction with a port per aggregate; and the store that opens it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from flowfabric.core.frozen import record
from flowfabric.core.records import Attempt, Event, Execution
from flowfabric.core.requests import Step
from flowfabric.core.trimming import EventKeeping
from flowfabric.core.waits import WaitChanges
from flowfabric.store.executions import Executions, HotStatements
from flowfabric.store.facts import StoreFacts
from flowfabric.store.flows import Flows
from flowfabric.store.journal import Attempts, Events, Steps
from flowfabric.store.news import News, Telling
from flowfabric.store.outbox import Outbox, Subscribers, Trimming
from flowfabric.store.purging import Purging
from flowfabric.store.routing import Grants, Keys, Lanes, Routes
from flowfabric.store.unlocked import Unlocked
from flowfabric.store.waiting import Looks, SigningKeys, Waits
from flowfabric.store.workers import Workers

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What an idle process asks for: due times after that one, and work on lanes for what its workers offer."""

    after: datetime
    keeping: EventKeeping
    lanes: Collection[tuple[str, str]] = ()
    capabilities: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """The store's time, the first due time of every duty, and whether work waits."""

    now: datetime
    due: Mapping[str, datetime | None]
    work: bool

    @property
    def overdue(self) -> set[str]:
        """The duties whose time has come."""
        return {name for name, time in self.due.items() if time is not None and time <= self.now}


class Due(Protocol):
    """What the reconcilers ask: which executions are due, and when the next one is."""

    async def ids(self, duty: str, now: datetime, limit: int) -> list[UUID]:
        """The executions that are due for a duty, most overdue first; nothing is locked."""

    async def look(self, question: Question) -> Look:
        """The store's time, the first due time of every duty, and whether there is work, in one statement."""


@record(frozen=True, slots=True, kw_only=True)
class Written:
    """What decisions on locked executions write: rows over what they were, ended attempts, events, waits."""

    executions: Sequence[tuple[Execution, Execution]] = ()
    attempts: Sequence[Attempt] = ()
    events: Sequence[Event] = ()
    waits: Sequence[WaitChanges] = ()


class Periphery(Protocol):
    """The ports for what stands around executions: due times, those who read events, and those who do the work and look
    around meanwhile."""

    @property
    def due(self) -> Due: ...
    @property
    def looks(self) -> Looks: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def subscribers(self) -> Subscribers: ...
    @property
    def trimming(self) -> Trimming: ...
    @property
    def purging(self) -> Purging: ...
    @property
    def workers(self) -> Workers: ...


class Transaction(Periphery, Protocol):
    """One transaction of the store. An operation awaits nothing else."""

    @property
    def executions(self) -> Executions: ...
    @property
    def hot(self) -> HotStatements: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def steps(self) -> Steps: ...
    @property
    def events(self) -> Events: ...
    @property
    def lanes(self) -> Lanes: ...
    @property
    def routes(self) -> Routes: ...
    @property
    def grants(self) -> Grants: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def waits(self) -> Waits: ...
    @property
    def unlocked(self) -> Unlocked: ...
    @property
    def signing_keys(self) -> SigningKeys: ...
    @property
    def flows(self) -> Flows: ...

    async def write(self, written: Written) -> None:
        """Writes exactly that, or fails."""

    async def now(self) -> datetime:
        """The store's clock, read now: after a lock, this is later than the wait for it."""


class JoinedTransaction(Transaction, Protocol):
    """A transaction of the caller's own, which only the caller commits or rolls back."""

    async def wake(self, news: News) -> None:
        """Tells the news when the transaction commits; where nothing can, no more happens than that whoever waits for
        them finds them at the next look."""


UserBody = Callable[[Any], Any]
Recording = Callable[[Any], Step]
Recorded = tuple[Any, Step]


class SharedTransaction(Transaction, Protocol):
    """A transaction of the engine in which code of the user's takes part."""

    async def perform(self, body: UserBody, record: Recording) -> Recorded:
        """Runs the user's code on the connection itself: its answer, and the step that is to be recorded for it."""


Body = Callable[[Transaction], Coroutine[Any, Any, Answer]]
SharedBody = Callable[[SharedTransaction], Coroutine[Any, Any, Answer]]
JoinedBody = Callable[[JoinedTransaction], Coroutine[Any, Any, Answer]]


class Store(Protocol):
    """A database that runs the bodies of operations."""

    @property
    def telling(self) -> Telling:
        """How it hands on news."""

    async def run(self, body: Body[Answer]) -> Answer:
        """Runs a body in one write transaction: all of it, or none. It may run more than once before it commits."""

    async def run_shared(self, body: SharedBody[Answer]) -> Answer:
        """The same for a body that lets the user's code take part; what that raises is raised as it is."""

    async def run_single(self, body: Body[Answer]) -> Answer:
        """The same for a body that makes one statement, or looks first and then writes by one that is guarded: it needs
        no transaction around it."""

    async def read(self, body: Body[Answer]) -> Answer:
        """Runs a body that only reads."""

    async def read_single(self, body: Body[Answer]) -> Answer:
        """The same for a body that makes exactly one statement, be it for several items."""

    async def run_within(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        """Runs a body once in the open transaction of a caller's asynchronous connection. With `savepoint`, what it
        wrote before it refused is taken back; a body that refuses only before it writes does not need one."""

    def run_within_sync(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        """The same for a synchronous connection, in the caller's thread."""

    async def ping(self) -> None:
        """Returns if the store answers."""

    async def facts(self) -> StoreFacts:
        """What the store says of itself."""

    async def close(self) -> None:
        """Ends all connections; later calls are refused."""
