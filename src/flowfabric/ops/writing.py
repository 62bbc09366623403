"""The one place where decisions become true: their rows, and whatever follows from those that end an execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.decisions import Decision
from flowfabric.core.flows import MemberEnd, counts_as_bad
from flowfabric.core.records import Execution
from flowfabric.core.states import TERMINAL, State
from flowfabric.ops.child_signals import signal_waiting
from flowfabric.ops.resolving import resolve
from flowfabric.ops.storing import store
from flowfabric.store.transaction import Transaction


async def write(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Writes what the decisions say; those that change nothing write nothing. Their executions must be locked, and
    before them the flows of those that may end."""
    changes = await store(tx, decisions)
    ended = [after for before, after in changes if after.state in TERMINAL and not before.plain]
    if ended:
        # Nothing stays open on an execution that has ended, however it did.
        await tx.waits.end([execution.id for execution in ended], ended[0].changed_at)
        await _tell_flows(tx, ended)
        alone = {execution.id: execution.state for execution in ended if execution.flow is None}
        await signal_waiting(tx, alone, ended[0].changed_at)


async def _tell_flows(tx: Transaction, ended: Sequence[Execution]) -> None:
    ends = [_end(execution) for execution in ended if execution.flow is not None]
    if ends:
        # They are locked by now; this reads them as they are.
        flows = await tx.flows.lock(None, [execution.flow for execution in ended if execution.flow is not None])
        await resolve(tx, flows, ends, ended[0].changed_at)


def _end(execution: Execution) -> MemberEnd:
    return MemberEnd(
        id=execution.id, flow_id=execution.flow_id, parent_id=execution.parent_id, state=execution.state,
        is_root=execution.flow_id is None and execution.has_children,
        is_bad=counts_as_bad(execution.state, execution.cancelled_by), ran=execution.state is State.COMPLETED,
    )  # fmt: skip
