"""claim_execution and claim_resumed: lease one execution by its id, if it waits and the worker can do it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from flowfabric.core.capabilities import require
from flowfabric.core.leasing import decide_claim, resumed_claim_only
from flowfabric.core.outcomes import Lease
from flowfabric.core.records import Execution
from flowfabric.core.requests import LeaseTerms
from flowfabric.core.transitions import CLAIM, check, refusal
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.routing import LaneState
from flowfabric.store.transaction import Transaction


async def claim_execution(
    tx: Transaction, namespace: str, id_: UUID, terms: LeaseTerms, capabilities: Collection[str]
) -> Lease:
    """The lease; refused if the execution does not wait, its lane is paused, or a capability is missing."""
    execution, now = await lock(tx, namespace, id_)
    return await _claim(tx, execution, now, terms, capabilities)


async def claim_resumed(
    tx: Transaction, namespace: str, id_: UUID, terms: LeaseTerms, capabilities: Collection[str]
) -> Lease:
    """The same, refused as well unless an interrupted attempt goes on."""
    execution, now = await lock(tx, namespace, id_)
    resumed_claim_only(execution)
    return await _claim(tx, execution, now, terms, capabilities)


async def _claim(
    tx: Transaction, execution: Execution, now: datetime, terms: LeaseTerms, capabilities: Collection[str]
) -> Lease:
    check(execution, CLAIM)
    if await tx.lanes.state(execution.namespace, execution.lane) is LaneState.PAUSED:
        raise refusal(execution, "lane_paused", f"lane {execution.lane!r} is paused")
    require(await tx.routes.requires(execution.route_id), capabilities)
    decision = decide_claim(execution, terms, now)
    await write(tx, [decision])
    return decision.answer
