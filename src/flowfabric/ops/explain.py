"""explain: why an execution is not running, in one sentence with the facts."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.explaining import Explanation, Surroundings
from flowfabric.core.explaining import explain as explain_execution
from flowfabric.core.states import State
from flowfabric.ops.locking import read
from flowfabric.ops.observing import views
from flowfabric.store.routing import LaneState
from flowfabric.store.transaction import Transaction

_MOST_WORKERS = 1000


async def explain(tx: Transaction, namespace: str, id_: UUID) -> Explanation:
    """The explanation of what the store holds now."""
    execution = await read(tx, namespace, id_)
    wait, _ = (None, ()) if execution.plain else await views(tx, id_)
    now = await tx.now()
    looks = execution.state is State.WAITING
    around = Surroundings(
        lane_is_paused=await tx.lanes.state(namespace, execution.lane) is LaneState.PAUSED,
        requires=await tx.routes.requires(execution.route_id), wait=wait, now=now,
        workers=await tx.workers.on_lane(namespace, execution.lane, now, _MOST_WORKERS) if looks else (),
    )  # fmt: skip
    return explain_execution(execution, around)
