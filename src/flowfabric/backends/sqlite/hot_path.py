"""Transactions of the writer thread. A claim takes three statements, because CTEs of SQLite cannot write."""

from __future__ import annotations

import sqlite3
from inspect import iscoroutinefunction
from uuid import UUID

from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.user_connections import lend
from flowfabric.core.executions.requests import Claim
from flowfabric.store import rows
from flowfabric.store.records import Claimed
from flowfabric.store.transaction import RecordedResult, SharedTransaction, StepRecorder, UserBody
from flowfabric.store.user_connections import UserCodeError, ended_early_error, wrong_body_error


class SqliteTransaction(SharedTransaction):
    """A transaction on the writer's connection, which user code may also use."""

    def __init__(self, session: SqliteSession, connection: sqlite3.Connection) -> None:
        super().__init__(session)
        self._connection = connection

    async def claim(self, namespace: str, claim: Claim, lease_bits: bytes, *, past_locked: bool = False) -> Claimed:
        candidates = await self.session.fetch(
            "claim_candidates",
            namespace=namespace,
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
        leases = {row["id"]: rows.to_lease(row, namespace, claim.worker) for row in lease_rows}
        if leases:
            self.hints.namespaces.add(namespace)
        ordered = tuple(leases[row["id"]] for row in candidates if row["id"] in leases)
        # The row of the store may have been removed, as test suites do.
        return Claimed(ordered, all_locked=False, is_current=all(row["era"] is not None for row in lease_rows))

    async def run_user_code(self, body: UserBody, record: StepRecorder) -> RecordedResult:
        if iscoroutinefunction(body):
            raise wrong_body_error("a plain function that takes a sqlite3 connection on SQLite")
        try:
            with lend(self._connection):
                result = body(self._connection)
            step = record(result)
        except Exception as error:
            raise UserCodeError(error) from error
        if not self._connection.in_transaction:
            raise ended_early_error()
        return result, step
