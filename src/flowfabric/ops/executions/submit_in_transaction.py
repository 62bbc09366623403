"""submit_in_transaction: store an execution in the caller's transaction. The caller's commit makes it visible."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from flowfabric.core.executions.outcomes import Created, Submitted
from flowfabric.core.executions.requests import Submission
from flowfabric.core.executions.states import State
from flowfabric.core.policy import span
from flowfabric.ops.executions.submit import SubmitRequest, submit_one
from flowfabric.ops.operation import operation
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.transaction import JoinedTransaction


@dataclass(frozen=True, slots=True)
class JoinedSubmission:
    """A submission with its id.

    Every process polls the store once per `poll_interval`, so other processes need hints only for earlier due times.
    """

    id: UUID
    submission: Submission
    poll_interval: timedelta


@operation()
async def submit_in_transaction(tx: JoinedTransaction, namespace: str, request: JoinedSubmission) -> Submitted:
    """Insert one execution. After a refusal, the caller must roll back to a savepoint, or roll back the transaction."""
    outcome = await submit_one(tx, namespace, SubmitRequest(request.id, request.submission))
    if isinstance(outcome, Created):
        await tx.notify_on_commit(await _hints(tx, namespace, outcome, request))
    return outcome


async def _hints(tx: JoinedTransaction, namespace: str, outcome: Created, request: JoinedSubmission) -> CommitHints:
    submission = request.submission
    hints = CommitHints(lanes={(namespace, submission.lane)} if outcome.state is State.WAITING else set())
    delays = [span(delay) for delay in (submission.delay, submission.policy.deadline) if delay is not None]
    times = [time for time in (submission.ready_at, submission.deadline) if time is not None]
    if delays or times:
        now = await tx.now()
        first = min(times + [now + delay for delay in delays])
        hints.due = first if first <= now + request.poll_interval else None
    return hints
