"""cancel_children: a worker cancels children of its execution, with all of their descendants."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import require_owner
from flowfabric.core.executions.states import State
from flowfabric.ops.flows.descendants import CancelCommand, Descendant, end_descendants, read_descendants
from flowfabric.ops.locks import lock_with_flow
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelChildren:
    """The children that the owner of a lease cancels."""

    fence: Fence
    children: tuple[UUID, ...]
    command: CancelCommand


@operation()
async def cancel_children(tx: Transaction, namespace: str, request: CancelChildren) -> list[UUID]:
    """Cancel children that have not ended, even running ones. Return the requested ids that are not children."""
    parent, _, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    require_owner(parent, request.fence, now)
    if parent.flow is None or not request.children:
        return list(request.children)
    facts = await tx.members.facts(request.children)
    children = [child for child in facts.values() if child.parent_id == parent.id]
    # An earlier cancellation of a child may have spared that child's own children.
    cancelled = [child for child in children if child.state is State.CANCELLED or not child.state.is_terminal]
    descendants = [Descendant(child) for child in cancelled if not child.state.is_terminal]
    descendants += await read_descendants(tx, [child.id for child in cancelled if child.has_children])
    await end_descendants(tx, parent.flow, descendants, request.command, now)
    return sorted(set(request.children) - {child.id for child in children})
