"""pause_lane, resume_lane, drain_lane, and the list of lanes."""

from __future__ import annotations

from flowfabric.core.records import Event
from flowfabric.core.requests import Command
from flowfabric.store.routing import LaneState
from flowfabric.store.transaction import Transaction

_EVENTS = {LaneState.ACTIVE: "lane_resumed", LaneState.PAUSED: "lane_paused", LaneState.DRAINING: "lane_draining"}


async def set_lane(tx: Transaction, namespace: str, lane: str, state: LaneState, command: Command) -> LaneState:
    """The state that the lane is in now; an event says who changed it, if it changed."""
    now = await tx.now()
    if await tx.lanes.put(namespace, lane, state, now):
        event = Event(
            namespace=namespace, family="operator", name=_EVENTS[state], at=now, lane=lane,
            principal=command.principal, reason=command.reason,
        )  # fmt: skip
        await tx.events.append([event])
    return state


async def list_lanes(tx: Transaction, namespace: str) -> dict[str, LaneState]:
    """Every lane that was used or touched, with its state."""
    return await tx.lanes.all(namespace)
