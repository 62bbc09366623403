"""delay and release: a worker gives its attempt back, to go on at a time or as soon as anybody can."""

from __future__ import annotations

from flowfabric.core.attempts import decide_pause
from flowfabric.core.outcomes import Delayed, Released
from flowfabric.core.requests import Pause
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def delay(tx: Transaction, namespace: str, request: Pause) -> Delayed | Released:
    """Until when the attempt rests."""
    answer: Delayed | Released = await give_up_lease(tx, namespace, request, decide_pause)
    return answer
