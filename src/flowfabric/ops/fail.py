"""fail: ends an attempt badly; the stored policy says whether there is another."""

from __future__ import annotations

from flowfabric.core.attempts import decide_fail
from flowfabric.core.outcomes import Ended, RetryScheduled
from flowfabric.core.requests import FailureReport
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def fail(tx: Transaction, namespace: str, request: FailureReport) -> RetryScheduled | Ended:
    """When the next attempt may start, or that there is none."""
    answer: RetryScheduled | Ended = await give_up_lease(tx, namespace, request, decide_fail)
    return answer
