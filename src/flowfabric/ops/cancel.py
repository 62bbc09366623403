"""cancel: ends an execution as cancelled, by an operator whoever works on it, or by its own worker. With grace it is a
request first; with children it reaches all that the execution has started, and what they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.attempts import decide_own_cancel
from flowfabric.core.control import decide_cancel, decide_cancel_request
from flowfabric.core.decisions import Decision
from flowfabric.core.flow_outcomes import CancelRequested
from flowfabric.core.flows import DEPENDENCIES, GroupState, MemberEnd, MemberFacts, counts_as_bad
from flowfabric.core.frozen import replace
from flowfabric.core.membership import MOST_CANCELLED, Resolution
from flowfabric.core.outcomes import Ended
from flowfabric.core.records import CancelRequest, Execution
from flowfabric.core.requests import Command, OwnCancel
from flowfabric.core.states import AttemptState, State
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.resolving import settle_flows
from flowfabric.ops.waiting import open_waits
from flowfabric.ops.writing import write
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.flows import Ending
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOrder:
    """An operator's wish to cancel: who, why, whether with children, and how long they may take to clean up."""

    command: Command
    source: str
    children: bool = False
    grace: timedelta | None = None


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
        await _cancel_family(tx, execution, order, now)
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
    ids = [member.id for member in family if member.id > after]
    first = ids[:MOST_CANCELLED]
    found = await tx.executions.lock(None, first) if first else {}
    return list(found.values()), first[-1] if len(ids) > MOST_CANCELLED else None


async def _ask(
    tx: Transaction, executions: Sequence[Execution], order: CancelOrder, now: datetime
) -> list[Ended | CancelRequested]:
    assert order.grace is not None, "only a cancel with grace is a request first"
    request = _request_of(order, now + order.grace)
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


def _request_of(order: CancelOrder, due_at: datetime) -> CancelRequest:
    command = order.command
    return CancelRequest(due_at=due_at, principal=command.principal, source=order.source, reason=command.reason)


async def _cancel_family(tx: Transaction, execution: Execution, order: CancelOrder, now: datetime) -> None:
    """Ends the descendants that have not ended: 1,000 here, the rest by the duty over cancel requests."""
    family = await _family(tx, execution)
    first, rest = family[:MOST_CANCELLED], family[MOST_CANCELLED:]
    if not first or execution.flow is None:
        return
    ids = [member.id for member in first]
    await tx.flows.members.lock([member.id for member in family])
    await tx.flows.members.end([_ending(member, execution, order) for member in first], now)
    await tx.waits.end(ids, now)
    if rest:
        await tx.flows.members.request_cancel([member.id for member in rest], _request_of(order, now))
    # The end of their parent was written before, so the flow is read as it is now.
    flows = await tx.flows.lock(None, [execution.flow])
    resolution = Resolution(now, frozen={id_ for id_, flow in flows.items() if flow.is_frozen})
    resolution.end(dict.fromkeys(ids, State.CANCELLED))
    await settle_flows(tx, flows, resolution, [_end(member, order) for member in first])


async def _family(tx: Transaction, execution: Execution) -> list[MemberFacts]:
    """All descendants that have not ended, in id order."""
    found: list[MemberFacts] = []
    parents: Sequence[UUID] = [execution.id] if execution.has_children else []
    while parents:
        children = await tx.flows.members.children_of(parents)
        found += [child for child in children if not child.state.is_terminal]
        parents = [child.id for child in children if child.has_children]
    return sorted(found, key=lambda member: member.id)


def _ending(member: MemberFacts, root: Execution, order: CancelOrder) -> Ending:
    return Ending(
        id=member.id, state=State.CANCELLED, cancelled_by=order.source, principal=order.command.principal,
        reason=order.command.reason, details={"source": order.source, "cause": "parent", "parent": str(root.id)},
    )  # fmt: skip


def _end(member: MemberFacts, order: CancelOrder) -> MemberEnd:
    return MemberEnd(
        id=member.id, flow_id=member.flow_id, parent_id=member.parent_id, state=State.CANCELLED, is_root=False,
        is_bad=counts_as_bad(State.CANCELLED, order.source), ran=False,
    )  # fmt: skip
