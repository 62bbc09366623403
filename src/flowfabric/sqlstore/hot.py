"""The hot path in SQL: guarded statements over batches. Only claiming differs in shape between the backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.records import Fence
from flowfabric.core.requests import Checkpoint, Claim, Completion, Progress
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Session
from flowfabric.store.executions import Claimed, NewExecution


class SqlHotStatements:
    """Runs the hot statements; a backend with writing CTEs replaces `claim`, which is two statements here."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def insert(self, items: Sequence[NewExecution]) -> set[UUID]:
        found = await self._session.fetch_batch(
            "insert_executions", [rows.inserted(item) for item in items], namespace=items[0].namespace, now=self._now
        )
        return {rows.identity(row["id"]) for row in found}

    async def claim(self, namespace: str, claim: Claim, lease_ids: Sequence[UUID]) -> Claimed:
        candidates = await self._session.fetch(
            "claim_candidates", namespace=namespace, lanes=list(claim.lanes), capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds), limit=claim.limit,
        )  # fmt: skip
        minted = [{"id": row["id"], "lease_id": lease} for row, lease in zip(candidates, lease_ids, strict=False)]
        taken = await self._session.fetch_batch(
            "take_waiting", minted, worker=claim.worker.name, instance=claim.worker.instance,
            ttl_us=rows.micros(claim.lease_ttl), now=self._now,
        )  # fmt: skip
        found = await self._session.fetch("get_executions", ids=[row["id"] for row in taken], namespace=namespace)
        leased = {row["id"]: rows.execution(row) for row in found}
        return Claimed(tuple(leased[row["id"]] for row in taken), all_locked=False)

    async def renew_if_owned(self, namespace: str, fences: Sequence[Fence]) -> dict[UUID, datetime]:
        found = await self._session.fetch_batch(
            "renew_if_owned", [_guard(fence) for fence in fences], namespace=namespace, now=self._now
        )
        return {rows.identity(row["id"]): rows.when(row["lease_expires_at"]) for row in found}

    async def progress_if_owned(self, namespace: str, items: Sequence[Progress]) -> set[UUID]:
        reports = [_guard(item.fence) | {"percent": item.percent, "message": item.message} for item in items]
        found = await self._session.fetch_batch("progress_if_owned", reports, namespace=namespace, now=self._now)
        return {rows.identity(row["id"]) for row in found}

    async def complete_if_owned(self, namespace: str, items: Sequence[Completion]) -> set[UUID]:
        endings = [
            _guard(item.fence) | {"result": item.result, "encoding": item.encoding, "digest": item.digest()}
            for item in items
        ]
        found = await self._session.fetch_batch("complete_if_owned", endings, namespace=namespace, now=self._now)
        return {rows.identity(row["id"]) for row in found}

    async def record_steps_if_owned(self, namespace: str, items: Sequence[Checkpoint]) -> dict[UUID, int]:
        steps = [
            _guard(item.fence)
            | {"place": place, "name": step.name, "status": step.status, "payload": step.payload}
            | {"encoding": step.encoding, "digest": step.digest()}
            for item in items
            for place, step in enumerate(item.steps, start=1)
        ]
        found = await self._session.fetch_batch(
            "record_steps_if_owned", steps, namespace=namespace, now=self._now, most=limits.STEPS_PER_EXECUTION
        )
        recorded: Counter[UUID] = Counter()
        for row in found:
            recorded[rows.identity(row["execution_id"])] += row["recorded"]
        return recorded

    @property
    def _now(self) -> datetime | None:
        return self._session.bound_now


def _guard(fence: Fence) -> dict[str, object]:
    return {"execution_id": fence.execution_id, "epoch": fence.epoch, "lease_id": fence.lease_id}
