"""renew and progress: a worker extends its lease, and reports its progress. An expired lease is never extended.

```text
renew ──> batch            one guarded statement, which skips locked rows
            │ not extended: lost or busy
            └──> lost_batch    locks the free rows: renewed after all, lost, or `lease_busy` if the row is locked
```

A renewal never waits for a row lock, so that one locked row delays no other lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.executions.outcomes import Renewed
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import Progress, execution_not_found, explain_fence, owns
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import BatchOperation
from flowfabric.store.rows import fence_parameters, matched_ids, to_datetime, to_uuid
from flowfabric.store.transaction import Transaction


class Renew(BatchOperation[Fence, Renewed]):
    """Extend each lease by its stored duration. With `with_events`, each renewal appends an event."""

    name = "renew"
    is_urgent = True

    def __init__(self, *, with_events: bool, fallback: BatchOperation[Fence, Renewed] | None = None) -> None:
        super().__init__(fallback)
        self._with_events = with_events

    def key(self, request: Fence) -> UUID:
        return request.execution_id

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Fence]
    ) -> Sequence[Renewed | FlowFabricError | None]:
        """Extend each lease that its fence still owns and whose row is not locked."""
        renewed = await renew_if_owned(tx, namespace, requests, with_events=self._with_events)
        return [renewed.get(fence.execution_id) for fence in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: Fence) -> Renewed:
        [outcome] = await renew_or_explain(tx, namespace, [request], with_events=self._with_events)
        if isinstance(outcome, FlowFabricError):
            raise outcome
        return outcome


class ExplainLost(Renew):
    """Explain in one batch why leases could not be extended, because a worker may lose many leases at the same time.

    It also extends the leases whose row was locked for a moment only.
    """

    single_statement = False
    batch_path = "lost_batch"

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Fence]
    ) -> Sequence[Renewed | FlowFabricError]:
        return await renew_or_explain(tx, namespace, requests, with_events=self._with_events)


def make_renew(*, with_events: bool) -> Renew:
    """Return the operation that renews the leases of one engine."""
    return Renew(with_events=with_events, fallback=ExplainLost(with_events=with_events))


async def renew_if_owned(
    tx: Transaction, namespace: str, fences: Sequence[Fence], *, with_events: bool = False
) -> dict[UUID, Renewed]:
    """Extend leases by one guarded statement.

    For each extended lease, return the new expiry and, if a cancel was requested, the time when it becomes final.
    """
    returned = await tx.session.fetch_batch(
        "renew_noted_if_owned" if with_events else "renew_if_owned",
        [fence_parameters(fence) for fence in fences],
        namespace=namespace,
        now=tx.session.bound_now,
    )
    if with_events and returned:
        tx.hints.namespaces.add(namespace)
    return {
        to_uuid(row["id"]): Renewed(to_datetime(row["lease_expires_at"]), to_datetime(row["cancel_due_at"]))
        for row in returned
    }


async def renew_or_explain(
    tx: Transaction, namespace: str, fences: Sequence[Fence], *, with_events: bool
) -> list[Renewed | FlowFabricError]:
    """Extend each lease, or return the reason why it cannot be extended. Never wait for a row lock."""
    ids = [fence.execution_id for fence in fences]
    free = {id_: row for id_, row in (await tx.executions.lock_free(ids)).items() if row.namespace == namespace}
    now = await tx.now()
    owned = [fence for fence in fences if fence.execution_id in free and owns(free[fence.execution_id], fence, now)]
    renewed = await renew_if_owned(tx, namespace, owned, with_events=with_events)
    unlocked = [id_ for id_ in ids if id_ not in free]
    locked = await tx.executions.get(namespace, unlocked) if unlocked else {}
    return [
        renewed.get(fence.execution_id) or _explain(free.get(fence.execution_id), locked.get(fence.execution_id), fence)
        for fence in fences
    ]


def _explain(free: Execution | None, locked: Execution | None, fence: Fence) -> FlowFabricError:
    if free is not None:
        return explain_fence(free, fence)
    if locked is None:
        return execution_not_found(fence.execution_id)
    lease = locked.lease
    if lease is None or lease.id != fence.lease_id or locked.epoch != fence.epoch:
        return explain_fence(locked, fence)  # A lease that has ended never comes back.
    # The transaction that holds the lock may be about to extend the lease, so even a late lease is not lost yet.
    message = "another transaction has locked the execution; renew the lease again before it expires"
    return Unavailable("lease_busy", message, execution_id=fence.execution_id, epoch=fence.epoch)


class ReportProgress(BatchOperation[Progress, bool]):
    """Store progress reports, without events."""

    name = "progress"

    def key(self, request: Progress) -> UUID:
        return request.fence.execution_id

    async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Progress]) -> list[bool | None]:
        """Store each report whose fence still owns its lease and whose row is not locked."""
        stored = await progress_if_owned(tx, namespace, requests)
        return [True if report.fence.execution_id in stored else None for report in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: Progress) -> bool:
        execution, _ = await lock_owned(tx, namespace, request.fence)
        if not await progress_if_owned(tx, namespace, [request]):
            raise explain_fence(execution, request.fence)  # The lease expired between the two reads of the clock.
        return True


PROGRESS = ReportProgress()


async def progress_if_owned(tx: Transaction, namespace: str, reports: Sequence[Progress]) -> set[UUID]:
    """Store progress reports by one guarded statement, and return the ids of their executions."""
    parameters = [
        fence_parameters(report.fence) | {"percent": report.percent, "message": report.message} for report in reports
    ]
    returned = await tx.session.fetch_batch(
        "progress_if_owned", parameters, namespace=namespace, now=tx.session.bound_now
    )
    return matched_ids(returned, [report.fence.execution_id for report in reports])
