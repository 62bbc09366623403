"""Write decisions. If a decision ends an execution, also write the consequences for its flow and its waiters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import TERMINAL, State
from flowfabric.core.flows.records import MemberEnd, counts_as_bad
from flowfabric.ops.flows.descendants import end_children
from flowfabric.ops.flows.resolve import resolve
from flowfabric.ops.waits.child_signals import signal_waiting
from flowfabric.ops.write_set import store
from flowfabric.store.transaction import Transaction

Outcome = TypeVar("Outcome")


async def write(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Write decisions and their consequences.

    The caller has locked the executions. If a decision may end an execution, its flow was locked first.
    """
    changes = await store(tx, decisions)
    ended = [after for before, after in changes if after.state in TERMINAL and not before.is_standalone]
    if ended:
        # Close the open waits of ended executions, for every kind of end.
        await tx.waits.end([execution.id for execution in ended], ended[0].changed_at)
        await _resolve_flows(tx, ended)
        without_flow = {execution.id: execution.state for execution in ended if execution.flow is None}
        await signal_waiting(tx, without_flow, ended[0].changed_at)
        await end_children(tx, [decision for decision in decisions if decision.ends_children], ended[0].changed_at)


async def write_one(tx: Transaction, decision: Decision[Outcome]) -> Outcome:
    """Write one decision and its consequences, and return its outcome."""
    await write(tx, [decision])
    return decision.outcome


async def _resolve_flows(tx: Transaction, ended: Sequence[Execution]) -> None:
    ends = [_member_end(execution) for execution in ended if execution.flow is not None]
    if ends:
        # The caller has locked the flows already. This second lock only reads their present content.
        flows = await tx.flows.lock(None, [execution.flow for execution in ended if execution.flow is not None])
        await resolve(tx, flows, ends, ended[0].changed_at)


def _member_end(execution: Execution) -> MemberEnd:
    return MemberEnd(
        id=execution.id,
        flow_id=execution.flow_id,
        parent_id=execution.parent_id,
        state=execution.state,
        is_root=execution.flow_id is None and execution.has_children,
        is_bad=counts_as_bad(execution.state, execution.cancelled_by),
        ran=execution.state is State.COMPLETED,
        name=execution.member_name,
    )
