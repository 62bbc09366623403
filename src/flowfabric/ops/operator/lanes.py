"""set_lane and list_lanes: pause, resume, drain and list lanes."""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.executions.records import Event
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.lanes import LaneInfo, LaneState
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_EVENTS = {LaneState.ACTIVE: "lane_resumed", LaneState.PAUSED: "lane_paused", LaneState.DRAINING: "lane_draining"}


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A new state for a lane, and who sets it."""

    lane: str
    state: LaneState
    audit: AuditInfo


@operation()
async def set_lane(tx: Transaction, namespace: str, change: LaneChange) -> LaneState:
    """Set the state of a lane, with an event if it changed, and return the state."""
    now = await tx.now()
    if await tx.lanes.put(namespace, change.lane, change.state, now, change.audit):
        event = Event(
            namespace=namespace,
            family="operator",
            name=_EVENTS[change.state],
            at=now,
            lane=change.lane,
            principal=change.audit.principal,
            reason=change.audit.reason,
        )
        await tx.events.append([event])
    return change.state


@dataclass(frozen=True, slots=True)
class NamedPage:
    """A page of named rows: at most `limit` whose name sorts after `after`."""

    after: str
    limit: int


@operation(read_only=True)
async def list_lanes(tx: Transaction, namespace: str, page: NamedPage) -> list[LaneInfo]:
    """Return a page of the lanes that were used or changed, sorted by name."""
    return await tx.lanes.page(namespace, page.after, page.limit)
