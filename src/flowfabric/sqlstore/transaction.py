"""One transaction on a SQL database, seen through the ports."""

from __future__ import annotations

from datetime import datetime

from flowfabric.sqlstore import rows
from flowfabric.sqlstore.executions import SqlExecutions
from flowfabric.sqlstore.flows import SqlFlows
from flowfabric.sqlstore.hot import SqlHotStatements
from flowfabric.sqlstore.journal import SqlAttempts, SqlEvents, SqlSteps
from flowfabric.sqlstore.looking import SqlLooks
from flowfabric.sqlstore.outbox import SqlOutbox, SqlSubscribers, SqlTrimming
from flowfabric.sqlstore.routing import SqlDue, SqlGrants, SqlKeys, SqlLanes, SqlRoutes
from flowfabric.sqlstore.session import Session
from flowfabric.sqlstore.unlocked import SqlUnlocked
from flowfabric.sqlstore.waiting import SqlSigningKeys, SqlWaits, touched, write_waits
from flowfabric.sqlstore.workers import SqlWorkers
from flowfabric.store.news import News
from flowfabric.store.transaction import Written


class SqlTransaction:
    """The aggregates over one session, and the news that its commit will be."""

    def __init__(
        self, session: Session, hot: type[SqlHotStatements] = SqlHotStatements,
        unlocked: type[SqlUnlocked] = SqlUnlocked,
    ) -> None:  # fmt: skip
        self._session = session
        self.news = News()
        self.executions = SqlExecutions(session)
        self.hot = hot(session, self.news)
        self.attempts = SqlAttempts(session)
        self.steps = SqlSteps(session)
        self.events = SqlEvents(session, self.news)
        self.lanes = SqlLanes(session)
        self.routes = SqlRoutes(session)
        self.grants = SqlGrants(session)
        self.keys = SqlKeys(session)
        self.waits = SqlWaits(session)
        self.unlocked = unlocked(session, self.executions, self.waits, self.news)
        self.looks = SqlLooks(session)
        self.signing_keys = SqlSigningKeys(session)
        self.flows = SqlFlows(session, self.news)
        self.due = SqlDue(session)
        self.outbox = SqlOutbox(session)
        self.subscribers = SqlSubscribers(session)
        self.trimming = SqlTrimming(session)
        self.workers = SqlWorkers(session)

    async def write(self, written: Written) -> None:
        saved = {after.id for _, after in written.executions}
        await write_waits(
            self._session,
            written.waits,
            *self.executions.saves(written.executions),
            ("touch_executions", [{"execution_id": id_} for id_ in touched(written.waits) - saved]),
            ("append_attempt", [rows.attempt_parameters(item) for item in written.attempts]),
            ("append_event", [rows.event_parameters(item) for item in written.events]),
        )
        self.news.note_events(written.events)

    async def now(self) -> datetime:
        return await self._session.now()
