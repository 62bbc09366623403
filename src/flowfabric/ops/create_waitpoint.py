"""create_waitpoint: slots for signals before anybody waits, so that their tokens can be handed out early."""

from __future__ import annotations

from flowfabric.core.frozen import replace
from flowfabric.core.minting import Minter
from flowfabric.core.outcomes import OpenWaitpoint
from flowfabric.core.suspending import (
    EMPTY,
    CreateWaitpoint,
    CreateWaitpoints,
    decide_create_waitpoint,
    decide_create_waitpoints,
)
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.key_ring import KeySource, minting_ring, read_ring
from flowfabric.ops.locking import lock_owned
from flowfabric.ops.waiting import rooms
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def create_waitpoint(tx: Transaction, namespace: str, request: CreateWaitpoint, keys: KeySource) -> OpenWaitpoint:
    """The waitpoint and its token; the one that is open under this key, if there is one."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    found = await rooms(tx, await tx.waits.open_waitpoints([execution.id]), {})
    minter = Minter(await minting_ring(tx, keys, now), namespace)
    decision = decide_create_waitpoint(execution, request, found.get(execution.id, EMPTY), minter, now)
    await write(tx, [decision])
    return decision.answer


async def create_waitpoints(
    tx: Transaction, namespace: str, request: CreateWaitpoints, keys: KeySource
) -> list[OpenWaitpoint]:
    """The same for several, with the steps that go with them, or nothing of it."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    found = await rooms(tx, await tx.waits.open_waitpoints([execution.id]), {})
    moved = await record_steps(tx, execution, request.steps, now)
    ring = await minting_ring(tx, keys, now) if request.waitpoints else await read_ring(tx, keys)
    minter = Minter(ring, namespace)
    decision = decide_create_waitpoints(moved, request.waitpoints, found.get(execution.id, EMPTY), minter, now)
    if request.steps and decision.after is None:
        decision = replace(decision, after=moved)
    await write(tx, [decision])
    return decision.answer
