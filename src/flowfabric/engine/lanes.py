"""`engine.lanes`: pause, resume and drain named queues."""

from __future__ import annotations

from flowfabric.core import validation
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.operator.lanes import LaneChange, list_lanes, set_lane
from flowfabric.store.records import LaneState


class Lanes:
    """Changes and lists the states of lanes; a lane is active unless it was changed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def pause(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """Continue to accept work for the lane, but give no work to workers."""
        return await self._set(lane, LaneState.PAUSED, reason, principal)

    async def resume(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """Accept work for the lane and give it to workers again."""
        return await self._set(lane, LaneState.ACTIVE, reason, principal)

    async def drain(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """Give the existing work of the lane to workers, but accept no new work."""
        return await self._set(lane, LaneState.DRAINING, reason, principal)

    async def list(self) -> dict[str, LaneState]:
        """Return every lane that was used or changed, with its state."""
        return await self._context.call(list_lanes, None)

    async def _set(self, lane: object, state: LaneState, reason: object, principal: object) -> LaneState:
        change = LaneChange(validation.name(lane, "lane"), state, audit_info(principal, reason))
        return await self._context.call(set_lane, change)
