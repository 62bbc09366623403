"""set_lane and list_lanes: pause, resume, drain and list lanes."""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.executions.records import Event
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.ops.operation import operation
from flowfabric.store.records import LaneState
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
    if await tx.lanes.put(namespace, change.lane, change.state, now):
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


@operation(read_only=True)
async def list_lanes(tx: Transaction, namespace: str, _: None) -> dict[str, LaneState]:
    """Return every lane that was used or set, with its state."""
    return await tx.lanes.all(namespace)
