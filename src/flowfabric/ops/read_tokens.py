"""read_tokens: the tokens of waitpoints that were handed out before, closed ones too, for the worker that owns them."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.errors import NotFound
from flowfabric.core.minting import Minter
from flowfabric.core.records import Execution, Fence
from flowfabric.core.secret import Secret
from flowfabric.ops.key_ring import KeySource, read_ring
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


async def read_tokens(
    tx: Transaction, namespace: str, fence: Fence, keys: Sequence[str], source: KeySource
) -> dict[str, Secret]:
    """The token of the latest waitpoint of each key in this generation, the same that was handed out."""
    execution, now = await lock_owned(tx, namespace, fence)
    minter = Minter(await read_ring(tx, source), namespace)
    found: dict[str, Secret] = {}
    for key in keys:
        waitpoint = await tx.waits.last_waitpoint(execution.id, key, now)
        token = None
        if waitpoint is not None and waitpoint.generation == execution.generation:
            token = minter.token(waitpoint)
        if token is None:
            raise _no_token(execution, key)
        found[key] = token
    return found


def _no_token(execution: Execution, key: str) -> NotFound:
    message = f"execution {execution.id} has no token at waitpoint {key!r}: it was never opened, or its key is gone"
    return NotFound("token_not_found", message, execution_id=execution.id, waitpoint=key)
