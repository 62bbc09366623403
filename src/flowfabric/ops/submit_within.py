"""submit_within: stores an execution in a transaction of the caller's, with whose commit it becomes true."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.outcomes import Created, Submitted
from flowfabric.core.records import Route
from flowfabric.core.requests import Submission
from flowfabric.ops.submit import Arrival, submit_alone
from flowfabric.store.transaction import JoinedTransaction


async def submit_within(tx: JoinedTransaction, namespace: str, id_: UUID, submission: Submission) -> Submitted:
    """Inserts one execution; a refusal has written nothing once the savepoint around it, if any, is rolled back."""
    route = Route(namespace, submission.lane, submission.kind, tuple(submission.requires))
    # The route may vanish with the caller's transaction, so nobody may remember its id.
    answer = await submit_alone(tx, namespace, Arrival(id_, await tx.routes.ensure(route), submission))
    if isinstance(answer, Created):
        await tx.wake(namespace, submission.lane)
    return answer
