"""explain: why an execution is not running, in one sentence with the facts."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.dependencies import Dependencies, Upstream, deciding_group
from flowfabric.core.explaining import Explanation, Surroundings
from flowfabric.core.explaining import explain as explain_execution
from flowfabric.core.flows import StoredEdge
from flowfabric.core.records import Execution
from flowfabric.core.states import State
from flowfabric.ops.locking import read
from flowfabric.ops.observing import hold_report, views
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
        dependencies=await _dependencies(tx, execution),
        hold_report=await hold_report(tx, execution),
        workers=await tx.workers.on_lane(namespace, execution.lane, now, _MOST_WORKERS) if looks else (),
    )  # fmt: skip
    return explain_execution(execution, around)


async def _dependencies(tx: Transaction, execution: Execution) -> Dependencies | None:
    """What a member that is blocked or was skipped hangs on."""
    if execution.flow is None or execution.state not in (State.BLOCKED, State.SKIPPED):
        return None
    group = deciding_group(await tx.flows.edges.groups_of([execution.id]))
    flows = await tx.flows.get(None, [execution.flow])
    if group is None or execution.flow not in flows:
        return None
    edges = await tx.flows.edges.into([execution.id], group.seq)
    found = await tx.executions.get(None, [edge.upstream_id for edge, _ in edges]) if edges else {}
    upstreams = tuple(_upstream(found[edge.upstream_id], edge) for edge, _ in edges)
    return Dependencies(flows[execution.flow], group, upstreams)


def _upstream(execution: Execution, edge: StoredEdge) -> Upstream:
    return Upstream(execution.id, execution.member_name or str(execution.id), execution.state, edge)
