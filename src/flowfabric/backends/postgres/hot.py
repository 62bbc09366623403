"""What writing CTEs make possible on PostgreSQL: one statement that claims, and one that goes on in flows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.requests import Claim
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.hot import SqlHotStatements
from flowfabric.store.executions import Claimed


class PostgresHotStatements(SqlHotStatements):
    """The shared hot path, with a claim in one statement, and the common case of what follows in flows in another."""

    async def claim(self, namespace: str, claim: Claim, drawn: bytes, *, past_locked: bool = False) -> Claimed:
        found = await self._session.fetch(
            "claim_unlocked" if past_locked else "claim_waiting", namespace=namespace,
            lanes=list(claim.lanes), capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds), limit=claim.limit, drawn=drawn,
            worker=claim.worker.name, instance=claim.worker.instance, ttl_us=rows.micros(claim.lease_ttl),
            now=self._now,
        )  # fmt: skip
        taken = tuple(rows.lease(row, namespace, claim.worker) for row in found if row["id"] is not None)
        if taken:
            self._news.namespaces.add(namespace)
        return Claimed(taken, all_locked=not taken and any(row["all_locked"] for row in found))

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        found = await self._session.fetch("pass_on", ids=list(ids), now=now)
        for lane in {row["lane"] for row in found} - {None}:
            self._news.note_work(namespace, lane)
        self._news.note_ended(namespace, {row["finished_id"] for row in found} - {None})
        return {row["id"] for row in found} - {None}
