"""`engine.lanes`: pause, resume and drain named queues."""

from __future__ import annotations

from flowfabric.core import validation
from flowfabric.core.lanes import LanePage, LaneState
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.cursors import cut_page, open_name_cursor, query_digest
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.operator.lanes import LaneChange, NamedPage, list_lanes, set_lane


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

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> LanePage:
        """Return one page of the lanes that were used or changed, sorted by name.

        Each lane has its state, and who last changed the state, when and why. Pass `next_cursor` of the page to get the
        next one.
        """
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(self._context.namespace, {"lanes": True})
        after = "" if cursor is None else open_name_cursor(cursor, query)
        lanes = await self._context.call(list_lanes, NamedPage(after, size + 1))
        return LanePage(*cut_page(lanes, size, query, lambda lane: lane.lane))

    async def _set(self, lane: object, state: LaneState, reason: object, principal: object) -> LaneState:
        change = LaneChange(validation.name(lane, "lane"), state, audit_info(principal, reason))
        return await self._context.call(set_lane, change)
