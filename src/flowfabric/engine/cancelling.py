"""Cancelling a flow batch by batch, for callers that wait until it is done."""

from __future__ import annotations

import time
from functools import partial
from uuid import UUID

from flowfabric.core.flow_outcomes import CancelScheduled, FlowAlreadyCancelled, FlowCancelled
from flowfabric.engine.context import Context
from flowfabric.ops.cancel_flow import FlowCancelRequest, cancel_flow, sweep_flow


async def cancel_in_batches(
    context: Context, flow_id: UUID, request: FlowCancelRequest, limit_s: float | None
) -> FlowCancelled | CancelScheduled | FlowAlreadyCancelled:
    """The answer of the first transaction, or, within the time given, that of the last."""
    ends = time.monotonic() + (limit_s or 0)
    body = partial(cancel_flow, namespace=context.namespace, flow_id=flow_id, request=request)
    answer = await context.store.run(body)
    context.due_at(None)
    # Who comes second, and waits, goes on with what the first has left.
    done, left = (0, 1) if isinstance(answer, FlowAlreadyCancelled) else answer
    while left and time.monotonic() < ends:
        more, left = await context.store.run(partial(sweep_flow, namespace=context.namespace, flow_id=flow_id))
        done += more
    if isinstance(answer, FlowAlreadyCancelled):
        return answer
    return CancelScheduled(left) if left else FlowCancelled(done)
