"""hold and unhold: an operator stops waiting or delayed work, and lets it go on."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.continuing import OwnHold, decide_own_hold
from flowfabric.core.control import decide_hold, decide_unhold, is_held
from flowfabric.core.flows import GroupState
from flowfabric.core.outcomes import AlreadySatisfied, Held, Unheld
from flowfabric.core.records import Execution
from flowfabric.core.requests import Command, Holds
from flowfabric.ops.locking import lock, lock_to_end
from flowfabric.ops.writing import write
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def hold(tx: Transaction, namespace: str, id_: UUID, command: Command) -> Held:
    """That it is held; already held is answered with the reason it was held for."""
    execution, now = await lock(tx, namespace, id_)
    decision = decide_hold(execution, command, now)
    await write(tx, [decision])
    return decision.answer


async def hold_own(tx: Transaction, namespace: str, request: OwnHold) -> Held:
    """That it is held, and the lease given up; the same request again is answered alike."""
    await give_up_lease(tx, namespace, request, decide_own_hold)
    return Held(request.reason)


async def unhold(tx: Transaction, namespace: str, id_: UUID, command: Command) -> Unheld | AlreadySatisfied:
    """The state it goes on in, or that it was not held."""
    execution, now = await lock_to_end(tx, namespace, id_)
    blocked = await _with_open_group(tx, [execution])
    decision = decide_unhold(execution, command, now, has_open_group=id_ in blocked)
    await write(tx, [decision])
    return decision.answer


async def unhold_next(
    tx: Transaction, namespace: str, holds: Holds, after: UUID, command: Command
) -> tuple[int, UUID | None]:
    """Unholds the next held executions of a kind, held for a reason; answers how many, and where to go on."""
    ids = await tx.executions.held_for_operator(namespace, holds, after, limits.BATCH)
    # Whoever waits for more than one member of a flow holds the flow.
    await tx.flows.lock_of(ids, wait=True)
    found = await tx.executions.lock(namespace, ids) if ids else {}
    now = await tx.now()
    blocked = await _with_open_group(tx, list(found.values()))
    decisions = [
        decide_unhold(execution, command, now, has_open_group=id_ in blocked)
        for id_, execution in found.items()
        if is_held(execution)
    ]
    await write(tx, decisions)
    return len(decisions), ids[-1] if len(ids) == limits.BATCH else None


async def _with_open_group(tx: Transaction, executions: Sequence[Execution]) -> set[UUID]:
    """Those that got upstreams while they were held."""
    members = [execution.id for execution in executions if execution.flow_id is not None]
    groups = await tx.flows.edges.groups_of(members) if members else []
    return {group.downstream_id for group in groups if group.state is GroupState.OPEN}
