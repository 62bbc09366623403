"""hold and unhold: an operator stops waiting or delayed work, and lets it go on."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.control import decide_hold, decide_unhold, is_held
from flowfabric.core.outcomes import AlreadySatisfied, Held, Unheld
from flowfabric.core.requests import Command, Holds
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def hold(tx: Transaction, namespace: str, id_: UUID, command: Command) -> Held:
    """That it is held; already held is answered with the reason it was held for."""
    execution, now = await lock(tx, namespace, id_)
    decision = decide_hold(execution, command, now)
    await write(tx, [decision])
    return decision.answer


async def unhold(tx: Transaction, namespace: str, id_: UUID, command: Command) -> Unheld | AlreadySatisfied:
    """The state it goes on in, or that it was not held."""
    execution, now = await lock(tx, namespace, id_)
    decision = decide_unhold(execution, command, now)
    await write(tx, [decision])
    return decision.answer


async def unhold_next(
    tx: Transaction, namespace: str, holds: Holds, after: UUID, command: Command
) -> tuple[int, UUID | None]:
    """Unholds the next held executions of a kind, held for a reason; answers how many, and where to go on."""
    ids = await tx.executions.held_for_operator(namespace, holds, after, limits.BATCH)
    found = await tx.executions.lock(namespace, ids) if ids else {}
    now = await tx.now()
    decisions = [decide_unhold(execution, command, now) for execution in found.values() if is_held(execution)]
    await write(tx, decisions)
    return len(decisions), ids[-1] if len(ids) == limits.BATCH else None
