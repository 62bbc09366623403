"""complete: ends an execution well. Plain ones by one statement; the others together too, with everything that hangs
on them: flows are locked first, then the same statement ends the members, then what follows is written for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core.attempts import decide_complete
from flowfabric.core.flows import Flow, MemberEnd
from flowfabric.core.ids import placement_key
from flowfabric.core.outcomes import Ended
from flowfabric.core.requests import Completion
from flowfabric.core.states import State
from flowfabric.ops.child_signals import signal_waiting
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.resolving import resolve
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def complete_together(tx: Transaction, namespace: str, items: Sequence[Completion]) -> list[Ended | None]:
    """Completes all plain executions that are owned and whose row is free; steps to record are left for later."""
    bare = [item for item in items if not item.steps]
    done = await tx.hot.complete_if_owned(namespace, bare) if bare else set()
    return [Ended(State.COMPLETED) if item.fence.execution_id in done and not item.steps else None for item in items]


async def complete_alone(tx: Transaction, namespace: str, item: Completion) -> Ended:
    """Completes one execution with its steps, answers a repeated completion, or says why not."""
    answer: Ended = await give_up_lease(tx, namespace, item, decide_complete)
    return answer


async def complete_linked(
    tx: Transaction, namespace: str, items: Sequence[Completion], *, wait: bool = False
) -> list[Ended | None]:
    """Completes executions with flows, children and waits, if they are owned and free, and so are their flows, which
    may be waited for."""
    bare = [item for item in items if not item.steps]
    locked = await tx.flows.lock_of([item.fence.execution_id for item in bare], wait=wait)
    ends, now = await tx.hot.complete_linked_if_owned(namespace, bare, {id_: flow.id for id_, flow in locked.items()})
    if now is not None:
        await _go_on(tx, namespace, locked, ends, now)
    done = {end.id for end in ends}
    return [Ended(State.COMPLETED) if item.fence.execution_id in done else None for item in items]


async def _go_on(
    tx: Transaction, namespace: str, locked: Mapping[UUID, Flow], ends: Sequence[MemberEnd], now: datetime
) -> None:
    """Writes what follows from these ends. The flows are locked."""
    members = [end for end in ends if end.id in locked]
    # A child's end is also news for its parent, so all ends of its flow are worked out together.
    worked_out = {locked[end.id].id for end in members if end.parent_id is not None or end.is_root}
    free = [end.id for end in members if locked[end.id].id not in worked_out]
    passed = await tx.hot.pass_on(namespace, free, now) if free else set()
    entangled = [end for end in members if end.id not in passed]
    if entangled:
        flows = {locked[end.id].id: locked[end.id] for end in entangled}
        await resolve(tx, flows, entangled, now, were_active=[end.id for end in entangled])
    others = {end.id: end.state for end in ends if end.id not in locked or end.id in passed}
    if others:
        await tx.waits.end(list(others), now, were_active=True)
        await signal_waiting(tx, others, now)


# The members of one flow that several processes end all want the same lock, and wait for it together.
_IN_LINE = HotOperation(
    partial(complete_linked, wait=True),
    complete_alone,
    subject=lambda item: item.fence.execution_id,
    solitary=lambda item: bool(item.steps),
    one_statement=False,
    apart=lambda item: placement_key(item.fence.execution_id),
)
COMPLETE_LINKED = HotOperation(
    complete_linked,
    complete_alone,
    subject=lambda item: item.fence.execution_id,
    solitary=lambda item: bool(item.steps),
    one_statement=False,
    others=_IN_LINE,
)
COMPLETE = HotOperation(
    complete_together,
    complete_alone,
    subject=lambda item: item.fence.execution_id,
    solitary=lambda item: bool(item.steps),
    others=COMPLETE_LINKED,
)
