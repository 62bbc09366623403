"""create_waitpoint: a slot for signals before anybody waits, so that its token can be handed out early."""

from __future__ import annotations

from flowfabric.core.minting import Minter
from flowfabric.core.outcomes import OpenWaitpoint
from flowfabric.core.suspending import EMPTY, CreateWaitpoint, decide_create_waitpoint
from flowfabric.ops.key_ring import KeySource, minting_ring
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
