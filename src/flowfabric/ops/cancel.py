"""cancel: ends an execution as cancelled, by an operator whoever works on it, or by its own worker."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.attempts import decide_own_cancel
from flowfabric.core.control import decide_cancel
from flowfabric.core.outcomes import Ended
from flowfabric.core.requests import Command, OwnCancel
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.writing import write
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def cancel(tx: Transaction, namespace: str, id_: UUID, command: Command, source: str) -> Ended:
    """The operator's cancel: already cancelled is answered alike, another outcome refused."""
    execution, now = await lock_to_end(tx, namespace, id_)
    decision = decide_cancel(execution, command, source, now)
    await write(tx, [decision])
    return decision.answer


async def cancel_own(tx: Transaction, namespace: str, request: OwnCancel) -> Ended:
    """The worker's cancel of what it works on."""
    answer: Ended = await give_up_lease(tx, namespace, request, decide_own_cancel)
    return answer
