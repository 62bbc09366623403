"""Frequent operations that PostgreSQL runs as one combined statement, because its CTEs may write."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import chain
from typing import Any
from uuid import UUID

from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import Claim
from flowfabric.store import rows
from flowfabric.store.executions import WriteSet
from flowfabric.store.records import Claimed, OptimisticSnapshot, SignalLookup
from flowfabric.store.session import Row
from flowfabric.store.signing_keys import to_key_ring
from flowfabric.store.snapshot import OptimisticStore
from flowfabric.store.transaction import Transaction
from flowfabric.store.waits import to_received_signals, to_suspension, to_waitpoint

# The statements that have a cheaper variant, which needs no transaction. Where the normal statement skips a row, the
# variant fails, and the store runs the body again in a transaction with the normal statements.
SINGLE_VARIANTS = {"complete_if_owned": "complete_single_if_owned", "insert_executions": "insert_single_executions"}


class PostgresOptimisticStore(OptimisticStore):
    """The optimistic store for a database with many writers. It does not write a row that changed since it was read.

    It reads without locks, and then writes by one guarded statement. No transaction includes both.
    """

    async def read_for_signals(self, lookups: Sequence[SignalLookup]) -> OptimisticSnapshot | None:
        parameters = [
            {
                "execution_id": lookup.execution_id,
                "id": lookup.id,
                "waitpoint_id": lookup.waitpoint_id,
                "key": lookup.key,
            }
            for lookup in lookups
        ]
        return self._snapshot(await self._session.fetch_batch("seen_before_signalling", parameters), lookups)

    async def write(self, written: WriteSet, snapshot: OptimisticSnapshot) -> Collection[UUID]:
        assert isinstance(self._session, PostgresSession), "only a PostgreSQL session has write_held"
        versions = [{"id": after.id, "mark": snapshot.row_versions[after.id]} for _, after in written.executions]
        written_ids = await self._session.write_if_unchanged(versions, *self._batches(written))
        self._hints.note_events([event for event in written.events if event.execution_id in written_ids])
        return written_ids

    def _snapshot(self, execution_rows: Sequence[Row], lookups: Sequence[SignalLookup]) -> OptimisticSnapshot | None:
        if not execution_rows:
            return None
        executions: dict[UUID, Execution] = {row["id"]: rows.to_execution(row) for row in execution_rows}
        waits = [(row["id"], _parse(row["waitpoints"]), _parse(row["suspensions"])) for row in execution_rows]
        signals = list(chain.from_iterable(_parse(row["signals"]) for row in execution_rows)) if lookups else []
        return OptimisticSnapshot(
            now=self._session.bound_now or execution_rows[-1]["now"],
            executions=executions,
            row_versions={row["id"]: row["mark"] for row in execution_rows},
            waitpoints={id_: [to_waitpoint(row) for row in waitpoints] for id_, waitpoints, _ in waits},
            suspensions={id_: to_suspension(suspensions[0]) for id_, _, suspensions in waits if suspensions},
            received=to_received_signals(signals, lookups),
            key_ring=to_key_ring(_parse(execution_rows[0]["ring"])),
        )


def _parse(document: str | None) -> list[Any]:
    return json.loads(document) if document else []


class PostgresTransaction(Transaction):
    """A transaction that claims by one statement, and releases the dependents of completed members by one statement."""

    optimistic_class = PostgresOptimisticStore

    async def claim(self, namespace: str, claim: Claim, lease_bits: bytes, *, past_locked: bool = False) -> Claimed:
        across: dict[str, object] = {"namespaces": list(claim.namespaces), "past_locked": past_locked}
        claim_rows = await self.session.fetch(
            "claim_across" if claim.namespaces else "claim_unlocked" if past_locked else "claim_waiting",
            **(across if claim.namespaces else {"namespace": namespace}),
            lanes=list(claim.lanes),
            capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds),
            limit=claim.limit,
            drawn=lease_bits,
            worker=claim.worker.name,
            instance=claim.worker.instance,
            ttl_us=rows.to_microseconds(claim.lease_ttl),
            now=self.session.bound_now,
        )
        leases = tuple(
            rows.to_lease(row, row["namespace"] if claim.namespaces else namespace, claim.worker)
            for row in claim_rows
            if row["id"] is not None
        )
        self.hints.namespaces.update(lease.namespace for lease in leases)
        first_row = claim_rows[0]
        return Claimed(leases, is_incomplete=bool(first_row["is_incomplete"]), is_current=bool(first_row["is_current"]))

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        ends = await self.session.fetch("pass_on", ids=list(ids), now=now)
        for lane in {row["lane"] for row in ends} - {None}:
            self.hints.note_work(namespace, lane)
        self.hints.note_ended(namespace, {row["finished_id"] for row in ends} - {None})
        return {row["id"] for row in ends} - {None}
