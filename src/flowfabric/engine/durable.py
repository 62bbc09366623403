"""What durable functions need of a lease beside the ends and pauses of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from flowfabric.core import limits, requests
from flowfabric.core.continuing import REPORT_BYTES, Continuation, OwnHold
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_id
from flowfabric.core.looking import Look, Looking, Recalling, places
from flowfabric.core.outcomes import Continued, Held
from flowfabric.core.records import Fence, RecordedStep
from flowfabric.core.requests import Step
from flowfabric.engine.claims import Claims
from flowfabric.ops.continue_with import continue_with
from flowfabric.ops.hold import hold_own
from flowfabric.ops.look import LOOK, RECALL
from flowfabric.ops.transact import Transact, transact


class DurableLeases(Claims):
    """Lets a worker look around while it works, write with its own code, hold what needs a person, begin anew."""

    async def recorded(self, fence: Fence, limit: int = limits.STEPS_PER_EXECUTION) -> list[RecordedStep]:
        """The steps that answer at present, in their order. It is a plain read."""
        id_, most = requests.fence(fence).execution_id, limits.whole(limit, "limit", 1, limits.STEPS_PER_EXECUTION)
        return await self._context.one(RECALL, Recalling(id_, most))

    async def look(self, fence: Fence, waitpoints: Mapping[str, int], children: Sequence[UUID | str] = ()) -> Look:
        """What is there by now, in one read: signals at waitpoints of the present generation with these keys, behind
        those places, the first hundred of each; how those of the executions ended that have; and which of the waits an
        operator ended. It is a plain read, so a lease that was lost is not told here."""
        id_, asked = requests.fence(fence).execution_id, places(waitpoints)
        ids = [parse_id(item, "children") for item in limits.batch(children, "children")]
        return await self._context.one(LOOK, Looking(id_, asked, ids))

    async def hold(self, fence: Fence, reason: str, report: str, *, steps: Sequence[Step] = ()) -> Held:
        """Gives up the lease until somebody unholds the execution; the same attempt goes on then. The report, for
        whoever repairs it, is shown with the execution and kept in its history; `unhold_all` finds it by the reason."""
        request = OwnHold(
            fence=requests.fence(fence), reason=limits.text(reason, "reason"),
            report=limits.text(report, "report", REPORT_BYTES), steps=requests.steps(steps),
        )  # fmt: skip
        return await self._context.store.run(lambda tx: hold_own(tx, self._context.namespace, request))

    async def transact(self, fence: Fence, body: Callable[[Any], Any], record: Callable[[Any], Step]) -> Any:
        """Runs `body` on a connection inside the engine's own transaction; the step that `record` makes of its answer
        is written with it, all or nothing. What either raises takes everything back, and is raised as it is.

        On PostgreSQL, `body` is an async function of an asyncpg connection with the defaults of the server and the
        role, but for the statement timeout and the time zone, which is UTC; after a conflict with other transactions it
        runs again. On SQLite it is a plain function of the `sqlite3` connection that writes, on the thread that writes,
        while nobody else can. It must not end the transaction; savepoints are fine. A step that was recorded before is
        refused with `step_already_recorded`, and nothing of the call is kept.
        """
        for name, function in (("body", body), ("record", record)):
            if not callable(function):
                message = f"{name} must be a function, not {type(function).__name__}"
                raise InvalidRequest("invalid_type", message, field=name)
        request = Transact(fence=requests.fence(fence), body=body, record=record)
        return await self._context.store.run_shared(lambda tx: transact(tx, self._context.namespace, request))

    async def continue_with(
        self, fence: Fence, payload: bytes, *, encoding: str = "json", steps: Sequence[Step] = ()
    ) -> Continued:
        """Gives up the lease; the same execution begins anew with this input, as its next generation. Its journal holds
        nothing but these steps. Whoever waits for it, its children and its standing waitpoints with their signals
        stay, other waitpoints close, and no attempt is used."""
        request = Continuation(
            fence=requests.fence(fence), payload=limits.payload(payload, "payload"),
            encoding=limits.name(encoding, "encoding"), steps=requests.steps(steps),
        )  # fmt: skip
        return await self._context.store.run(lambda tx: continue_with(tx, self._context.namespace, request))
