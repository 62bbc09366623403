"""Transactions of the writer thread. A claim takes three statements, because CTEs of SQLite cannot write."""

from __future__ import annotations

from datetime import timedelta
from inspect import iscoroutinefunction
from sqlite3 import ProgrammingError
from uuid import UUID

from flowfabric.backends.sqlite.lending import WriterConnection
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.core.executions.requests import Claim
from flowfabric.store import rows
from flowfabric.store.records import Claimed
from flowfabric.store.transaction import RecordedResult, SharedTransaction, StepRecorder, UserBody
from flowfabric.store.user_connections import UserCodeError, ended_early_error, wrong_body_error

# Other leases of the worker need the file at least twice per term, and a renewal is due after a third of the term.
_LIMIT_PER_LEASE = 1 / 3


class SqliteTransaction(SharedTransaction):
    """A transaction on the writer's connection, which user code may also use."""

    def __init__(self, session: SqliteSession, connection: WriterConnection, limit_s: float | None) -> None:
        super().__init__(session)
        self._connection = connection
        self._limit_s = limit_s

    async def claim(self, namespace: str, claim: Claim, lease_bits: bytes, *, past_locked: bool = False) -> Claimed:
        candidates = await self.session.fetch(
            "claim_candidates_across" if claim.namespaces else "claim_candidates",
            **({"namespaces": list(claim.namespaces)} if claim.namespaces else {"namespace": namespace}),
            lanes=list(claim.lanes),
            capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds),
            limit=claim.limit,
        )
        lease_ids = [
            {"id": row["id"], "lease_id": UUID(bytes=lease_bits[16 * index : 16 * index + 16])}
            for index, row in enumerate(candidates)
        ]
        taken = await self.session.fetch_batch(
            "take_waiting",
            lease_ids,
            worker=claim.worker.name,
            instance=claim.worker.instance,
            ttl_us=rows.to_microseconds(claim.lease_ttl),
            now=self.session.bound_now,
        )
        lease_rows = await self.session.fetch("get_leases", ids=[row["id"] for row in taken])
        places = {row["id"]: row["namespace"] for row in candidates} if claim.namespaces else {}
        leases = {row["id"]: rows.to_lease(row, places.get(row["id"], namespace), claim.worker) for row in lease_rows}
        self.hints.namespaces.update(lease.namespace for lease in leases.values())
        ordered = tuple(leases[row["id"]] for row in candidates if row["id"] in leases)
        # The row of the store may have been removed, as test suites do.
        return Claimed(ordered, is_incomplete=False, is_current=all(row["era"] is not None for row in lease_rows))

    async def run_user_code(self, body: UserBody, record: StepRecorder, lease_ttl: timedelta) -> RecordedResult:
        if iscoroutinefunction(body):
            raise wrong_body_error("a plain function that takes a sqlite3 connection on SQLite")
        limit_s = lease_ttl.total_seconds() * _LIMIT_PER_LEASE if self._limit_s is None else self._limit_s
        try:
            with self._connection.lend(limit_s):
                result = body(self._connection)
                step = record(result)
        except Exception as error:
            raise UserCodeError(error) from error
        if not is_in_transaction(self._connection):
            raise ended_early_error()
        return result, step


def is_in_transaction(connection: WriterConnection) -> bool:
    """Return False if there is no transaction, for example because user code closed the connection."""
    try:
        return connection.in_transaction
    except ProgrammingError:
        return False
