"""Submitting in a caller's own open transaction: the execution is stored if and only if that commits."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.outcomes import Submitted
from flowfabric.core.requests import Submission
from flowfabric.engine.context import Context
from flowfabric.ops.submit_within import submit_within
from flowfabric.store.transaction import JoinedBody
from flowfabric.wakeups.wakeups import LOOK_ALIVE_S

_HORIZON = timedelta(seconds=LOOK_ALIVE_S)


class Joining:
    """The part of `engine.executions` that works on connections of the caller's."""

    _context: Context

    async def submit_within(self, connection: object, submission: Submission) -> Submitted:
        """Stores one execution in the open transaction of an asynchronous connection.

        `connection` is an asyncpg connection, a psycopg AsyncConnection, or an AsyncConnection or AsyncSession of
        SQLAlchemy over one of them. It is never committed or rolled back here, and a refusal leaves the transaction
        as it was. On PostgreSQL a real error of the database aborts it, as it does after any other statement.
        """
        body = self._body(submission)
        return await self._context.store.run_within(connection, body, savepoint=submission.key is not None)

    def submit_within_sync(self, connection: object, submission: Submission) -> Submitted:
        """The same for a synchronous connection, from any thread, with or without an event loop.

        `connection` is a psycopg Connection, a Connection or Session of SQLAlchemy over it, or for an engine on SQLite
        a sqlite3 Connection to the same file, on which automatic checkpoints are switched off for good.
        """
        body = self._body(submission)
        return self._context.store.run_within_sync(connection, body, savepoint=submission.key is not None)

    def _body(self, submission: object) -> JoinedBody[Submitted]:
        if not isinstance(submission, Submission):
            raise InvalidRequest("invalid_type", f"submission must be a Submission, not {type(submission).__name__}")
        id_ = submission.id if isinstance(submission.id, UUID) else self._context.ids.mint()
        return partial(
            submit_within, namespace=self._context.namespace, id_=id_, submission=submission, horizon=_HORIZON
        )
