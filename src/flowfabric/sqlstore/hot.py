"""The hot path in SQL: guarded statements over batches. Only claiming differs in shape between the backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.flows import MemberEnd
from flowfabric.core.outcomes import Renewed
from flowfabric.core.records import Fence
from flowfabric.core.requests import Checkpoint, Claim, Completion, Progress
from flowfabric.core.states import State
from flowfabric.sqlstore import rows
from flowfabric.sqlstore.session import Row, Session
from flowfabric.store.executions import Claimed, NewExecution
from flowfabric.store.news import News


class SqlHotStatements:
    """Runs the hot statements; a backend with writing CTEs replaces `claim`, which is two statements here, and
    `pass_on`, which leaves everything to be worked out."""

    def __init__(self, session: Session, news: News) -> None:
        self._session = session
        self._news = news

    async def insert(self, items: Sequence[NewExecution]) -> set[UUID]:
        found = await self._session.fetch_batch(
            "insert_executions", [rows.inserted(item) for item in items], namespace=items[0].namespace, now=self._now
        )
        for item in items if found else ():
            if item.state is State.WAITING:
                self._news.note_work(item.namespace, item.submission.lane)
        return _passed(found, [item.id for item in items])

    async def claim(self, namespace: str, claim: Claim, drawn: bytes, *, past_locked: bool = False) -> Claimed:
        candidates = await self._session.fetch(
            "claim_candidates", namespace=namespace, lanes=list(claim.lanes), capabilities=list(claim.capabilities),
            kinds=None if claim.kinds is None else list(claim.kinds), limit=claim.limit,
        )  # fmt: skip
        minted = [
            {"id": row["id"], "lease_id": UUID(bytes=drawn[16 * place : 16 * place + 16])}
            for place, row in enumerate(candidates)
        ]
        taken = await self._session.fetch_batch(
            "take_waiting", minted, worker=claim.worker.name, instance=claim.worker.instance,
            ttl_us=rows.micros(claim.lease_ttl), now=self._now,
        )  # fmt: skip
        found = await self._session.fetch("get_leases", ids=[row["id"] for row in taken])
        leases = {row["id"]: rows.lease(row, namespace, claim.worker) for row in found}
        if leases:
            self._news.namespaces.add(namespace)
        return Claimed(tuple(leases[row["id"]] for row in candidates if row["id"] in leases), all_locked=False)

    async def renew_if_owned(
        self, namespace: str, fences: Sequence[Fence], *, noted: bool = False
    ) -> dict[UUID, Renewed]:
        statement = "renew_noted_if_owned" if noted else "renew_if_owned"
        found = await self._session.fetch_batch(
            statement, [_guard(fence) for fence in fences], namespace=namespace, now=self._now
        )
        if noted and found:
            self._news.namespaces.add(namespace)
        return {
            rows.identity(row["id"]): Renewed(rows.when(row["lease_expires_at"]), rows.when(row["cancel_due_at"]))
            for row in found
        }

    async def progress_if_owned(self, namespace: str, items: Sequence[Progress]) -> set[UUID]:
        reports = [_guard(item.fence) | {"percent": item.percent, "message": item.message} for item in items]
        found = await self._session.fetch_batch("progress_if_owned", reports, namespace=namespace, now=self._now)
        return _passed(found, [item.fence.execution_id for item in items])

    async def complete_if_owned(self, namespace: str, items: Sequence[Completion]) -> set[UUID]:
        endings = [_ending(item) for item in items]
        found = await self._session.fetch_batch("complete_if_owned", endings, namespace=namespace, now=self._now)
        completed = _passed(found, [item.fence.execution_id for item in items])
        self._note_completed(namespace, items, completed, found)
        return completed

    async def complete_linked_if_owned(
        self, namespace: str, items: Sequence[Completion], flows: Mapping[UUID, UUID]
    ) -> tuple[list[MemberEnd], datetime | None]:
        endings = [_ending(item) | {"flow_id": flows.get(item.fence.execution_id)} for item in items]
        found = await self._session.fetch_batch("complete_linked_if_owned", endings, namespace=namespace, now=self._now)
        ends = [_completed(row) for row in found]
        self._note_completed(namespace, items, {end.id for end in ends}, found)
        return ends, rows.when(found[0]["ended_at"]) if found else None

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        return set()

    async def record_steps_if_owned(self, namespace: str, items: Sequence[Checkpoint]) -> dict[UUID, int]:
        steps = [
            {
                **_guard(item.fence), "place": place, "name": step.name, "status": step.status,
                "payload": step.payload, "encoding": step.encoding, "digest": step.digest(),
            }
            for item in items
            for place, step in enumerate(item.steps, start=1)
        ]  # fmt: skip
        found = await self._session.fetch_batch(
            "record_steps_if_owned", steps, namespace=namespace, now=self._now, most=limits.STEPS_PER_EXECUTION
        )
        recorded: Counter[UUID] = Counter()
        for row in found:
            recorded[rows.identity(row["execution_id"])] += row["recorded"]
        return recorded

    def _note_completed(
        self, namespace: str, items: Sequence[Completion], completed: set[UUID], found: Sequence[Row]
    ) -> None:
        if completed:
            ended_at = rows.when(found[0]["ended_at"])
            done = [item for item in items if item.fence.execution_id in completed]
            self._news.note_completed(namespace, done, ended_at)

    @property
    def _now(self) -> datetime | None:
        return self._session.bound_now


def _passed(found: Sequence[Row], asked: Sequence[UUID]) -> set[UUID]:
    """Which of the ids that were asked about, each once, a statement answered: all of them, as a rule."""
    return set(asked) if len(found) == len(asked) else {rows.identity(row["id"]) for row in found}


def _ending(item: Completion) -> dict[str, object]:
    return {**_guard(item.fence), "result": item.result, "encoding": item.encoding, "digest": item.digest()}


def _completed(row: Row) -> MemberEnd:
    flow_id = rows.identity(row["flow_id"])
    return MemberEnd(
        id=rows.identity(row["id"]), flow_id=flow_id, parent_id=rows.identity(row["parent_id"]),
        is_root=flow_id is None and bool(row["has_children"]), state=State.COMPLETED, is_bad=False, ran=True,
    )  # fmt: skip


def _guard(fence: Fence) -> dict[str, object]:
    return {"execution_id": fence.execution_id, "epoch": fence.epoch, "lease_id": fence.lease_id}
