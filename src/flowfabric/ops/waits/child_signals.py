"""Signal executions that wait for a different execution to end. The transaction that ends it sends the signals.

The signal is named after the outcome. The parent and unrelated executions may wait for the same execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import State
from flowfabric.core.waits.records import Waitpoint
from flowfabric.core.waits.signals import child_signal
from flowfabric.ops.waits.load import decide_signals
from flowfabric.ops.write_set import store
from flowfabric.store.transaction import Transaction

_NO_PARENTS: Mapping[UUID, UUID | None] = {}


async def signal_waiting(
    tx: Transaction, ended: Mapping[UUID, State], now: datetime, parents: Mapping[UUID, UUID | None] = _NO_PARENTS
) -> None:
    """Deliver a signal to every open waitpoint for the ended executions. The caller has locked them and their flows."""
    remaining = await tx.members.child_waitpoints(list(ended)) if ended else []
    while remaining:
        # Each waiting execution gets only one signal per round, because that signal may end its wait.
        batch = {waitpoint.execution_id: waitpoint for waitpoint in reversed(remaining)}
        waiting = await tx.executions.lock(None, list(batch))
        delivered = {waitpoint.id for waitpoint in batch.values()}
        await _deliver(tx, await _reread(tx, batch, parents), waiting, ended, now)
        ids = [waitpoint.id for waitpoint in remaining if waitpoint.id not in delivered]
        remaining = _still_open(await tx.waits.waitpoints(ids)) if ids else []


async def _reread(
    tx: Transaction, waitpoints: Mapping[UUID, Waitpoint], parents: Mapping[UUID, UUID | None]
) -> Mapping[UUID, Waitpoint]:
    """Return the waitpoints that are still open, read again under the lock of the waiting execution.

    An execution that is not the parent may have changed its waits since the first read. A parent cannot have done so,
    because its flow is locked.
    """
    assert all(waitpoint.child_id is not None for waitpoint in waitpoints.values()), "each was found by its child's id"
    unrelated = [
        waitpoint.id
        for id_, waitpoint in waitpoints.items()
        if waitpoint.child_id and parents.get(waitpoint.child_id) != id_
    ]
    if not unrelated:
        return waitpoints
    present = await tx.waits.waitpoints(unrelated)
    latest = {id_: present.get(waitpoint.id, waitpoint) for id_, waitpoint in waitpoints.items()}
    return {id_: waitpoint for id_, waitpoint in latest.items() if waitpoint.closed_at is None}


async def _deliver(
    tx: Transaction,
    waitpoints: Mapping[UUID, Waitpoint],
    waiting: Mapping[UUID, Execution],
    ended: Mapping[UUID, State],
    now: datetime,
) -> None:
    signals = []
    for execution in waiting.values():
        if execution.id in waitpoints and not execution.state.is_terminal:
            waitpoint = waitpoints[execution.id]
            assert waitpoint.child_id is not None, "it was found by its child's id"
            signals.append((execution, waitpoint, child_signal(waitpoint, ended[waitpoint.child_id], now)))
    await store(tx, await decide_signals(tx, signals, now))


def _still_open(waitpoints: Mapping[UUID, Waitpoint]) -> list[Waitpoint]:
    still_open = (waitpoint for waitpoint in waitpoints.values() if waitpoint.closed_at is None)
    return sorted(still_open, key=lambda waitpoint: waitpoint.id)
