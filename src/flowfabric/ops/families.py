"""Ending what executions have started: all descendants that have not ended, by a few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.flows import MemberEnd, MemberFacts, counts_as_bad
from flowfabric.core.membership import MOST_CANCELLED, Resolution
from flowfabric.core.records import CancelRequest
from flowfabric.core.requests import Command
from flowfabric.core.states import State
from flowfabric.ops.resolving import settle_flows
from flowfabric.store.flows import Ending
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOrder:
    """A wish to cancel: who, why, whether with children, and how long they may take to clean up."""

    command: Command
    source: str
    children: bool = False
    grace: timedelta | None = None

    def request(self, due_at: datetime) -> CancelRequest:
        """The same, to be done by then."""
        command = self.command
        return CancelRequest(due_at=due_at, principal=command.principal, source=self.source, reason=command.reason)


@dataclass(frozen=True, slots=True)
class Relative:
    """A member to be cancelled, by itself or as a descendant of somebody who is."""

    member: MemberFacts
    ancestor: UUID | None = None


async def descendants(tx: Transaction, roots: Sequence[UUID]) -> list[Relative]:
    """All descendants of executions that have children, those that have not ended, parents before their children."""
    found: list[Relative] = []
    ancestors = {root: root for root in roots}
    parents: Sequence[UUID] = roots
    while parents:
        children = await tx.flows.members.children_of(parents)
        ancestors |= {child.id: ancestors[child.parent_id] for child in children if child.parent_id is not None}
        found += [Relative(child, ancestors[child.id]) for child in children if not child.state.is_terminal]
        parents = [child.id for child in children if child.has_children]
    return found


async def end_family(
    tx: Transaction, flow_id: UUID, family: Sequence[Relative], order: CancelOrder, now: datetime
) -> None:
    """Ends members of a locked flow: the first 1,000 here, the rest by the duty over cancel requests. Parents come
    before their children, so that nobody who is left for later has children who are not."""
    if not family:
        return
    first, rest = family[:MOST_CANCELLED], family[MOST_CANCELLED:]
    ids = [relative.member.id for relative in first]
    details = {ancestor: _details(order, ancestor) for ancestor in {relative.ancestor for relative in first}}
    await tx.flows.members.lock([relative.member.id for relative in family])
    await tx.flows.members.end([_ending(item.member.id, order, details[item.ancestor]) for item in first], now)
    await tx.waits.end(ids, now)
    if rest:
        await tx.flows.members.request_cancel([relative.member.id for relative in rest], order.request(now))
    # The end of their parent may have been written before, so the flow is read as it is now.
    flows = await tx.flows.lock(None, [flow_id])
    resolution = Resolution(now, frozen={id_ for id_, flow in flows.items() if flow.is_frozen})
    resolution.end(dict.fromkeys(ids, State.CANCELLED))
    await settle_flows(tx, flows, resolution, [_end(relative.member, order) for relative in first])


def _details(order: CancelOrder, ancestor: UUID | None) -> dict[str, object]:
    cause = {} if ancestor is None else {"cause": "parent", "parent": str(ancestor)}
    return {"source": order.source, **cause}


def _ending(id_: UUID, order: CancelOrder, details: dict[str, object]) -> Ending:
    return Ending(
        id=id_, state=State.CANCELLED, cancelled_by=order.source, principal=order.command.principal,
        reason=order.command.reason, details=details,
    )  # fmt: skip


def _end(member: MemberFacts, order: CancelOrder) -> MemberEnd:
    return MemberEnd(
        id=member.id, flow_id=member.flow_id, parent_id=member.parent_id, state=State.CANCELLED, is_root=False,
        is_bad=counts_as_bad(State.CANCELLED, order.source), ran=False,
    )  # fmt: skip
