"""cancel: ends an execution as cancelled, by an operator whoever works on it, or by its own worker. With grace it is a
request first; with children it reaches all that the execution has started, and what they have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.attempts import decide_own_cancel
from flowfabric.core.control import decide_cancel, decide_cancel_request
from flowfabric.core.decisions import Decision
from flowfabric.core.flow_outcomes import CancelRequested
from flowfabric.core.flows import DEPENDENCIES, GroupState
from flowfabric.core.frozen import replace
from flowfabric.core.membership import MOST_CANCELLED
from flowfabric.core.outcomes import Ended
from flowfabric.core.records import Execution
from flowfabric.core.requests import OwnCancel
from flowfabric.core.states import AttemptState, State
from flowfabric.ops.families import CancelOrder, Relative, descendants, end_family
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.waiting import open_waits
from flowfabric.ops.writing import write
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)


async def cancel(
    tx: Transaction, namespace: str, id_: UUID, order: CancelOrder
) -> tuple[Ended | CancelRequested, UUID | None]:
    """The operator's cancel: already cancelled is answered alike, another outcome refused. If there are more children
    to be asked than one transaction asks, also the last of them, after whom `ask_next` goes on."""
    execution, now = await lock_to_end(tx, namespace, id_)
    if order.grace is not None:
        family, last = await _to_ask(tx, execution, order, _FIRST_ID)
        answers = await _ask(tx, [execution, *family], order, now)
        return answers[0], last
    decision = decide_cancel(execution, order.command, order.source, now)
    await write(tx, [decision])
    if order.children and execution.flow is not None:
        await end_family(tx, execution.flow, await _family(tx, execution), order, now)
    return decision.answer, None


async def ask_next(tx: Transaction, namespace: str, id_: UUID, order: CancelOrder, after: UUID) -> UUID | None:
    """Asks the next children, those after this one, and answers the last of them; None if there are no more."""
    execution, now = await lock_to_end(tx, namespace, id_)
    family, last = await _to_ask(tx, execution, order, after)
    await _ask(tx, family, order, now)
    return last


async def cancel_own(tx: Transaction, namespace: str, request: OwnCancel) -> Ended:
    """The worker's cancel of what it works on."""
    answer: Ended = await give_up_lease(tx, namespace, request, decide_own_cancel)
    return answer


async def _to_ask(
    tx: Transaction, execution: Execution, order: CancelOrder, after: UUID
) -> tuple[list[Execution], UUID | None]:
    """The next of the family, locked; with the last of them if there are more."""
    family = await _family(tx, execution) if order.children else []
    ids = sorted(relative.member.id for relative in family if relative.member.id > after)
    first = ids[:MOST_CANCELLED]
    found = await tx.executions.lock(None, first) if first else {}
    return list(found.values()), first[-1] if len(ids) > MOST_CANCELLED else None


async def _ask(
    tx: Transaction, executions: Sequence[Execution], order: CancelOrder, now: datetime
) -> list[Ended | CancelRequested]:
    assert order.grace is not None, "only a cancel with grace is a request first"
    request = order.request(now + order.grace)
    waits = await open_waits(tx, executions)
    decisions = [
        decide_cancel_request(item, waits.get(item.id), request, now, has_steps=await _has_steps(tx, item))
        for item in executions
    ]
    await _close_waits(tx, decisions)
    await write(tx, decisions)
    return [decision.answer for decision in decisions]


async def _close_waits(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Whoever goes on to clean up waits for its children no more: the end of one must neither end its next wait, nor
    the others before they have cleaned up."""
    goes_on = [item.before.id for item in decisions if item.after is not None and item.before.state is State.BLOCKED]
    groups = await tx.flows.edges.groups_of(goes_on) if goes_on else []
    left = [group for group in groups if group.seq != DEPENDENCIES and group.state is GroupState.OPEN]
    if left:
        await tx.flows.edges.put_groups([replace(group, state=GroupState.CLOSED) for group in left])


async def _has_steps(tx: Transaction, execution: Execution) -> bool:
    """True of what was replayed from a step, and not begun since: what was done before that is there to be undone."""
    return execution.attempt_state is AttemptState.PENDING_REPLAY and await tx.steps.count(execution.id) > 0


async def _family(tx: Transaction, execution: Execution) -> list[Relative]:
    return await descendants(tx, [execution.id] if execution.has_children else [])
