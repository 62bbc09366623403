"""`engine.lanes`: pausing, resuming and draining named queues."""

from __future__ import annotations

from flowfabric.core import limits
from flowfabric.engine.context import Context, command
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.lanes import list_lanes, set_lane
from flowfabric.store.routing import LaneState


class Lanes:
    """Changes and lists the state of lanes; one that nobody touched is active."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def pause(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """Work is still accepted, but none is given out."""
        return await self._set(lane, LaneState.PAUSED, reason, principal)

    async def resume(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """The lane accepts and gives out work again."""
        return await self._set(lane, LaneState.ACTIVE, reason, principal)

    async def drain(self, lane: str, reason: str = "", *, principal: str = OPERATOR) -> LaneState:
        """What is there is given out, but nothing new is accepted."""
        return await self._set(lane, LaneState.DRAINING, reason, principal)

    async def list(self) -> dict[str, LaneState]:
        """Every lane that was used or touched, with its state."""
        return await self._context.store.read(lambda tx: list_lanes(tx, self._context.namespace))

    async def _set(self, lane: object, state: LaneState, reason: object, principal: object) -> LaneState:
        name, who = limits.name(lane, "lane"), command(principal, reason)
        return await self._context.store.run(lambda tx: set_lane(tx, self._context.namespace, name, state, who))
