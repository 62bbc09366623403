"""One transaction on a SQL database, seen through the ports."""

from __future__ import annotations

from datetime import datetime

from flowfabric.sqlstore.executions import SqlExecutions
from flowfabric.sqlstore.flows import SqlFlows
from flowfabric.sqlstore.hot import SqlHotStatements
from flowfabric.sqlstore.journal import SqlAttempts, SqlEvents, SqlSteps
from flowfabric.sqlstore.routing import SqlDue, SqlGrants, SqlKeys, SqlLanes, SqlRoutes
from flowfabric.sqlstore.session import Session
from flowfabric.sqlstore.waiting import SqlSigningKeys, SqlWaits


class SqlTransaction:
    """The aggregates over one session."""

    def __init__(self, session: Session, hot: type[SqlHotStatements] = SqlHotStatements) -> None:
        self._session = session
        self.executions = SqlExecutions(session)
        self.hot = hot(session)
        self.attempts = SqlAttempts(session)
        self.steps = SqlSteps(session)
        self.events = SqlEvents(session)
        self.lanes = SqlLanes(session)
        self.routes = SqlRoutes(session)
        self.grants = SqlGrants(session)
        self.keys = SqlKeys(session)
        self.waits = SqlWaits(session)
        self.signing_keys = SqlSigningKeys(session)
        self.flows = SqlFlows(session)
        self.due = SqlDue(session)

    async def now(self) -> datetime:
        return await self._session.now()
