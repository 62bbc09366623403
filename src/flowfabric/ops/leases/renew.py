"""renew and progress: a worker extends its lease, and reports its progress. An expired lease is never extended.

```text
renew ──> batch            one guarded statement
            │ not extended: lost or busy
            └──> lost_batch    explains lost leases together
                     │ owned after all, busy or missing
                     └──> locked_single
```
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.outcomes import Renewed
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import Progress, explain_fence, require_owner
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import BatchOperation
from flowfabric.store.rows import fence_parameters, matched_ids, to_datetime, to_uuid
from flowfabric.store.transaction import Transaction


class Renew(BatchOperation[Fence, Renewed]):
    """Extend each lease by its stored duration. With `with_events`, each renewal appends an event."""

    name = "renew"

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
        execution, _ = await lock_owned(tx, namespace, request)
        renewed = await renew_if_owned(tx, namespace, [request], with_events=self._with_events)
        if request.execution_id not in renewed:
            raise explain_fence(execution, request)  # The lease expired between the two reads of the clock.
        return renewed[request.execution_id]


class ExplainLost(Renew):
    """Explain in one batch why leases could not be extended, because a worker may lose many leases at the same time."""

    single_statement = False
    batch_path = "lost_batch"

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Fence]
    ) -> Sequence[Renewed | FlowFabricError | None]:
        """Return the refusal of each lost lease, or None for a lease that is still owned, busy or missing."""
        executions = await tx.executions.lock_free([fence.execution_id for fence in requests])
        now = await tx.now()
        return [_explain_loss(namespace, executions.get(fence.execution_id), fence, now) for fence in requests]


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


def _explain_loss(namespace: str, execution: Execution | None, fence: Fence, now: datetime) -> FlowFabricError | None:
    if execution is None or execution.namespace != namespace:
        return None
    try:
        require_owner(execution, fence, now)
    except FlowFabricError as error:
        return error
    return None


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
