"""Looking at an execution often, and waiting for its end."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_id
from flowfabric.core.views import Glance, Outcome
from flowfabric.engine.context import Context
from flowfabric.engine.ending import until_ended
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
        *,
        is_new: bool = False,
    ) -> Glance | None:
        """The first glance that is enough, at the latest that of the end; None if the timeout passes first. Only the
        end wakes who waits: anything else is noticed within seconds. An execution that `is_new` was submitted just now,
        so nobody looks before it can have ended."""
        found = parse_id(id)
        if not callable(enough):
            raise InvalidRequest(
                "invalid_type", f"enough must be a function, not {type(enough).__name__}", field="enough"
            )

        async def look() -> Glance | None:
            glance = await self._context.read(glances, found)
            return glance if glance.outcome is not None or enough(glance) else None

        return await until_ended(self._context.wakeups, found, look, timeout, is_new=limits.truth(is_new, "is_new"))


def _has_ended(glance: Glance) -> bool:
    return glance.outcome is not None
