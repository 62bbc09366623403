"""skip_signal: exclude a signal from all waits, because the task cannot read its payload."""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.executions.records import Fence
from flowfabric.core.waits.signals import decide_skip_signal
from flowfabric.ops.apply import write_one
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSignal:
    """A worker's request to skip a signal, with the reason."""

    fence: Fence
    seq: int
    reason: str


@operation()
async def skip_signal(tx: Transaction, namespace: str, request: SkipSignal) -> bool:
    """Exclude a signal from all waits, with an event. Return False if the signal was excluded before."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    signal = await tx.waits.skip_signal(execution.id, request.seq)
    if signal is None:
        return False
    return await write_one(tx, decide_skip_signal(execution, signal, request.reason, now))
