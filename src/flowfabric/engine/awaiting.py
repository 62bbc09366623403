"""Looking at an execution often, and waiting for its end."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_id
from flowfabric.core.views import Glance, Outcome
from flowfabric.engine.context import Context
from flowfabric.engine.ending import Look, until_ended
from flowfabric.ops.look import glances


class Awaiting:
    """The part of `engine.executions` for those who wait."""

    _context: Context

    async def glance(self, id: UUID | str) -> Glance:
        """Where the execution is: cheap, because callers at the same time share one read."""
        return await self._context.read(glances, parse_id(id))

    async def wait(self, id: UUID | str, timeout: limits.Duration | None = None) -> Outcome | None:  # noqa: ASYNC109
        """Waits until the execution has ended; None if the timeout passes first."""
        glance = await self.wait_until(id, _has_ended, timeout)
        return None if glance is None else glance.outcome

    async def wait_until(
        self,
        id: UUID | str,
        enough: Callable[[Glance], bool],
        timeout: limits.Duration | None = None,  # noqa: ASYNC109
    ) -> Glance | None:
        """The first glance that is enough, at the latest that of the end; None if the timeout passes first. Only the
        end wakes who waits: anything else is noticed within seconds."""
        found = parse_id(id)
        return await until_ended(self._context.wakeups, found, self._look(found, enough), timeout)

    def _look(self, id_: UUID, enough: Callable[[Glance], bool]) -> Look[Glance]:
        if not callable(enough):
            raise InvalidRequest(
                "invalid_type", f"enough must be a function, not {type(enough).__name__}", field="enough"
            )

        async def look(told: Glance | None) -> Glance | None:
            glance = await self._context.read(glances, id_) if told is None else told
            return glance if glance.outcome is not None or enough(glance) else None

        return look


def _has_ended(glance: Glance) -> bool:
    return glance.outcome is not None
