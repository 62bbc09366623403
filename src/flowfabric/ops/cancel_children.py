"""cancel_children: a worker cancels children of the execution that it works on, with all that these have started."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.fences import require_owner
from flowfabric.core.records import Fence
from flowfabric.core.states import State
from flowfabric.ops.families import CancelOrder, Relative, descendants, end_family
from flowfabric.ops.locking import lock_with_flow
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelChildren:
    """A worker's wish to be rid of children."""

    fence: Fence
    children: tuple[UUID, ...]
    order: CancelOrder


async def cancel_children(tx: Transaction, namespace: str, request: CancelChildren) -> list[UUID]:
    """Ends them as cancelled, whoever works on them; who has ended stays as it is. Answers who is no child of it."""
    parent, _, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    require_owner(parent, request.fence, now)
    if parent.flow is None or not request.children:
        return list(request.children)
    found = await tx.flows.members.facts(request.children)
    children = [child for child in found.values() if child.parent_id == parent.id]
    # Who was cancelled before may have been so without its children.
    gone = [child for child in children if child.state is State.CANCELLED or not child.state.is_terminal]
    family = [Relative(child) for child in gone if not child.state.is_terminal]
    family += await descendants(tx, [child.id for child in gone if child.has_children])
    await end_family(tx, parent.flow, family, request.order, now)
    return sorted(set(request.children) - {child.id for child in children})
