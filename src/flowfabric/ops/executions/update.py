"""set_tags and change_priority: change an execution without moving it to another state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.executions.operator import decide_change_priority
from flowfabric.core.executions.outcomes import PriorityChanged
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.ops.apply import write_one
from flowfabric.ops.flows.extend import lock_flow
from flowfabric.ops.locks import lock
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class TagChange:
    """Tags to set on an execution or a flow; the value None removes a tag."""

    id: UUID
    tags: Mapping[str, str | None]

    def merge(self, current: Mapping[str, str]) -> dict[str, str]:
        """Return the current tags with this change."""
        merged = {**current, **self.tags}
        return validation.tags({key: value for key, value in merged.items() if value is not None})


@operation()
async def set_tags(tx: Transaction, namespace: str, change: TagChange) -> dict[str, str]:
    """Change tags, in any state and without an event, and return all tags of the execution."""
    execution, now = await lock(tx, namespace, change.id)
    tags = change.merge(execution.tags)
    await tx.executions.set_tags(execution.id, tags, now)
    return tags


@operation()
async def set_flow_tags(tx: Transaction, namespace: str, change: TagChange) -> dict[str, str]:
    """Change tags of a flow, in any state and without an event, and return all of its tags."""
    flow = await lock_flow(tx, namespace, change.id)
    tags = change.merge(flow.tags)
    await tx.flows.set_tags(flow.id, tags, await tx.now())
    return tags


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """A new priority for an execution, and who sets it."""

    execution_id: UUID
    priority: int
    audit: AuditInfo


@operation()
async def change_priority(tx: Transaction, namespace: str, change: PriorityChange) -> PriorityChanged:
    """Change the priority, and return the old and the new priority. Refuse unless the execution waits for a worker."""
    execution, now = await lock(tx, namespace, change.execution_id)
    return await write_one(tx, decide_change_priority(execution, change.priority, change.audit, now))
