"""What durable functions need of a lease beside the ends and pauses of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from flowfabric.core import limits, requests
from flowfabric.core.ids import parse_id
from flowfabric.core.looking import Look, places
from flowfabric.core.records import Fence, RecordedStep
from flowfabric.engine.claims import Claims
from flowfabric.ops.look import look


class DurableLeases(Claims):
    """Lets a worker look around while it works."""

    async def recorded(self, fence: Fence, limit: int = limits.STEPS_PER_EXECUTION) -> list[RecordedStep]:
        """The steps that answer at present, in their order, by one statement. It is a plain read."""
        id_, most = requests.fence(fence).execution_id, limits.whole(limit, "limit", 1, limits.STEPS_PER_EXECUTION)
        return await self._context.store.read_single(lambda tx: tx.steps.of(id_, 0, most))

    async def look(self, fence: Fence, waitpoints: Mapping[str, int], children: Sequence[UUID | str] = ()) -> Look:
        """What is there by now, in one read: signals at waitpoints of the present generation with these keys, behind
        those places, the first hundred of each; how those of the executions ended that have; and which of the waits an
        operator ended. It is a plain read, so a lease that was lost is not told here."""
        id_, asked = requests.fence(fence).execution_id, places(waitpoints)
        ids = [parse_id(item, "children") for item in limits.batch(children, "children")]
        return await self._context.store.read_single(lambda tx: look(tx, self._context.namespace, id_, asked, ids))
