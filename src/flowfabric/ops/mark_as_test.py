"""mark_as_test: allow a test to move the store's time."""

from __future__ import annotations

from flowfabric.core.errors import InvalidRequest
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@operation()
async def mark_as_test(tx: Transaction, namespace: str, adopt: bool) -> None:
    """Mark the store, or raise `not_a_test_store` if a program has used it. With `adopt`, mark it anyway."""
    is_marked, is_used = await tx.test_mark.read()
    if is_marked:
        return
    if is_used and not adopt:
        raise InvalidRequest(
            "not_a_test_store",
            "a testing kit would move the time of this store, which holds work of a program; "
            "use a new file or schema, or open a copy of the store with Kit(…, adopt=True)",
        )
    await tx.test_mark.set()
