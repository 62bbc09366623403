"""submit_within: stores an execution in a transaction of the caller's, with whose commit it becomes true."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.core.outcomes import Created, Submitted
from flowfabric.core.policy import span
from flowfabric.core.records import Route
from flowfabric.core.requests import Submission
from flowfabric.core.states import State
from flowfabric.ops.submit import Arrival, submit_alone
from flowfabric.store.news import News
from flowfabric.store.transaction import JoinedTransaction


async def submit_within(
    tx: JoinedTransaction, namespace: str, id_: UUID, submission: Submission, horizon: timedelta
) -> Submitted:
    """Inserts one execution; a refusal has written nothing once the savepoint around it, if any, is rolled back.
    Within the horizon everybody looks anyhow, so what is due later need not be told."""
    route = Route(namespace, submission.lane, submission.kind, tuple(submission.requires))
    # The route may vanish with the caller's transaction, so nobody may remember its id.
    answer = await submit_alone(tx, namespace, Arrival(id_, await tx.routes.ensure(route), submission))
    if isinstance(answer, Created):
        await tx.wake(await _news(tx, namespace, answer, submission, horizon))
    return answer


async def _news(
    tx: JoinedTransaction, namespace: str, answer: Created, submission: Submission, horizon: timedelta
) -> News:
    news = News(lanes={(namespace, submission.lane)} if answer.state is State.WAITING else set())
    delays = [span(delay) for delay in (submission.delay, submission.policy.deadline) if delay is not None]
    times = [time for time in (submission.ready_at, submission.deadline) if time is not None]
    if delays or times:
        now = await tx.now()
        first = min(times + [now + delay for delay in delays])
        news.due = first if first <= now + horizon else None
    return news
