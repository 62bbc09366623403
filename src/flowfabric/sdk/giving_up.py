"""What a run asks of the store when all its branches rest, and what it can find out before that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.flow_outcomes import WaitingForChildren
from flowfabric.core.limits import BATCH
from flowfabric.core.looking import Look
from flowfabric.core.outcomes import Satisfied
from flowfabric.core.waits import Rest
from flowfabric.sdk.commits import insist
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.parking import MOST_TOGETHER, Family, Wait, earliest, only_children, wake

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run


async def give_up(run: Run, waits: Sequence[Wait]) -> bool:
    """Gives the lease up until one of the waits is over; True if one is already, and the lease is kept."""
    commits, leases, fence = run.commits, run.engine.leases, run.lease.fence
    if all(wait.condition() is None for wait in waits):
        due = earliest(waits)
        await commits.carry(lambda steps: leases.delay(fence, until=due, steps=steps))
        return False
    family = only_children(waits)
    if family is not None and len(family.children) > MOST_TOGETHER:
        with suppress(NotFound):  # Not all of them are children, so they are waited for like anybody else.
            return await _wait_for(run, family)
    wanted = wake(waits)
    end = None if wanted.timeout_at is None else max(wanted.timeout_at, run.now())
    found = await commits.carry(
        lambda steps: leases.suspend(
            fence, wanted.bindings, wanted.condition, reason=wanted.reason, timeout_at=end,
            on_timeout=wanted.on_timeout, rest=Rest.KEEP, steps=steps,
        )
    )  # fmt: skip
    return isinstance(found, Satisfied)


async def _wait_for(run: Run, family: Family) -> bool:
    leases, fence = run.engine.leases, run.lease.fence
    answer = await run.commits.carry(
        lambda steps: leases.wait_children(fence, family.children, join=family.join, edge=family.edge, steps=steps)
    )
    return not isinstance(answer, WaitingForChildren)


async def look_around(run: Run, waits: Sequence[Wait]) -> Look | None:
    """What has come for the waits, and how the executions ended that they wait for; None if they only wait for time."""
    keys = {key: after for wait in waits for key, after in wait.keys().items()}
    children = [wait.child for wait in waits if wait.child is not None]
    for wait in waits:
        wait.is_unseen = False
    if not keys and not children:
        return None
    seen = await look(run, keys, children[:BATCH])
    for start in range(BATCH, len(children), BATCH):
        more = await look(run, {}, children[start : start + BATCH])
        seen = replace(seen, children={**seen.children, **more.children})
    return seen


async def look(run: Run, keys: Mapping[str, int], children: Sequence[UUID]) -> Look:
    """What has come to these waitpoints, and how these executions ended."""
    seen = await insist(run, lambda: run.engine.leases.look(run.lease.fence, keys, children))
    run.calls.check_over()
    if seen is None:
        raise Unwind
    return seen
