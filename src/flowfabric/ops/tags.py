"""set_tags: sets and removes tags, in any state. Tags are not part of the life of an execution: no event."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from flowfabric.core import limits
from flowfabric.ops.locking import lock
from flowfabric.store.transaction import Transaction


async def set_tags(tx: Transaction, namespace: str, id_: UUID, changes: Mapping[str, str | None]) -> dict[str, str]:
    """All tags of the execution afterwards; None removes one."""
    execution, _ = await lock(tx, namespace, id_)
    merged = {**execution.tags, **changes}
    tags = limits.tags({key: value for key, value in merged.items() if value is not None})
    await tx.executions.set_tags(id_, tags)
    return tags
