"""One transaction on a SQL database, seen through the ports."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from flowfabric.sqlstore import rows
from flowfabric.sqlstore.executions import SqlExecutions
from flowfabric.sqlstore.flows import SqlFlows
from flowfabric.sqlstore.hot import SqlHotStatements
from flowfabric.sqlstore.journal import SqlAttempts, SqlEvents, SqlSteps
from flowfabric.sqlstore.looking import SqlLooks
from flowfabric.sqlstore.outbox import SqlOutbox, SqlSubscribers, SqlTrimming
from flowfabric.sqlstore.purging import SqlPurging
from flowfabric.sqlstore.routing import SqlDue, SqlGrants, SqlKeys, SqlLanes, SqlRoutes
from flowfabric.sqlstore.session import Session
from flowfabric.sqlstore.unlocked import SqlUnlocked
from flowfabric.sqlstore.waiting import SqlSigningKeys, SqlWaits, touched, write_waits
from flowfabric.sqlstore.workers import SqlWorkers
from flowfabric.store.news import News
from flowfabric.store.transaction import Written

Aggregate = TypeVar("Aggregate")


class _Port(Generic[Aggregate]):
    """An aggregate of a transaction, made when it is first asked for: most operations need two or three of them."""

    def __init__(self, make: Callable[[SqlTransaction], Aggregate]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: SqlTransaction, owner: type) -> Aggregate:
        made = tx.__dict__[self._name] = self._make(tx)
        return made


class SqlTransaction:
    """The aggregates over one session, and the news that its commit will be."""

    def __init__(
        self, session: Session, hot: type[SqlHotStatements] = SqlHotStatements,
        unlocked: type[SqlUnlocked] = SqlUnlocked,
    ) -> None:  # fmt: skip
        self.session = session
        self.news = News()
        self.hot = hot(session, self.news)
        self.of_unlocked = unlocked

    executions = _Port(lambda tx: SqlExecutions(tx.session))
    attempts = _Port(lambda tx: SqlAttempts(tx.session))
    steps = _Port(lambda tx: SqlSteps(tx.session))
    events = _Port(lambda tx: SqlEvents(tx.session, tx.news))
    lanes = _Port(lambda tx: SqlLanes(tx.session))
    routes = _Port(lambda tx: SqlRoutes(tx.session))
    grants = _Port(lambda tx: SqlGrants(tx.session))
    keys = _Port(lambda tx: SqlKeys(tx.session))
    waits = _Port(lambda tx: SqlWaits(tx.session))
    unlocked = _Port(lambda tx: tx.of_unlocked(tx.session, tx.executions, tx.waits, tx.news))
    looks = _Port(lambda tx: SqlLooks(tx.session))
    signing_keys = _Port(lambda tx: SqlSigningKeys(tx.session))
    flows = _Port(lambda tx: SqlFlows(tx.session, tx.news))
    due = _Port(lambda tx: SqlDue(tx.session))
    outbox = _Port(lambda tx: SqlOutbox(tx.session))
    subscribers = _Port(lambda tx: SqlSubscribers(tx.session))
    trimming = _Port(lambda tx: SqlTrimming(tx.session))
    purging = _Port(lambda tx: SqlPurging(tx.session))
    workers = _Port(lambda tx: SqlWorkers(tx.session))

    async def write(self, written: Written) -> None:
        saved = {after.id for _, after in written.executions}
        await write_waits(
            self.session,
            written.waits,
            *self.executions.saves(written.executions),
            ("touch_executions", [{"execution_id": id_} for id_ in touched(written.waits) - saved]),
            ("append_attempt", [rows.attempt_parameters(item) for item in written.attempts]),
            ("append_event", [rows.event_parameters(item) for item in written.events]),
        )
        self.news.note_events(written.events)

    async def now(self) -> datetime:
        return await self.session.now()
