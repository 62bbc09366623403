"""Waitpoints that nobody waits at any more are closed: what comes there would be lost without anybody hearing of it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.waits import WaitpointState
from flowfabric.sdk.commits import persist

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run


async def close_waitpoints(run: Run, keys: Collection[str], reason: str) -> None:
    """Closes those of the execution's waitpoints that have these keys; what is closed meanwhile is closed."""
    waitpoints = run.engine.waitpoints
    after: UUID | None = None
    while keys and (page := await persist(run, partial(waitpoints.list, run.lease.execution_id, after=after))):
        after = page[-1].id
        for waitpoint in page:
            if waitpoint.key in keys and waitpoint.state is not WaitpointState.CLOSED:
                with suppress(FlowFabricError):
                    await persist(run, partial(waitpoints.close, waitpoint.id, reason, principal="program"))
