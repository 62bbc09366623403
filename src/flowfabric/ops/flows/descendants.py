"""Find all descendants of executions that have not ended, and cancel them by a few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import CancelRequest, Execution
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.executions.states import State
from flowfabric.core.flows.records import MemberFacts
from flowfabric.core.flows.resolution import MAX_CANCELLED
from flowfabric.ops.flows.resolve import ENGINE, cancellation, member_end, resolve
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCommand:
    """Who cancels and why, whether children are cancelled too, and how long executions may take to clean up."""

    audit: AuditInfo
    source: str
    children: bool = False
    grace: timedelta | None = None

    def request(self, due_at: datetime) -> CancelRequest:
        """Return the stored request to stop by `due_at`."""
        audit = self.audit
        return CancelRequest(
            due_at=due_at,
            principal=audit.principal,
            source=self.source,
            reason=audit.reason,
            children=self.children,
        )


@dataclass(frozen=True, slots=True)
class Descendant:
    """A member to be cancelled. If it is cancelled because an ancestor was, `ancestor` is the id of that ancestor."""

    member: MemberFacts
    ancestor: UUID | None = None


async def read_descendants(tx: Transaction, roots: Sequence[UUID]) -> list[Descendant]:
    """Return the descendants of `roots` that have not ended, with parents before their children."""
    descendants: list[Descendant] = []
    ancestors = {root: root for root in roots}
    parents: Sequence[UUID] = roots
    while parents:
        children = await tx.members.children_of(parents)
        ancestors |= {child.id: ancestors[child.parent_id] for child in children if child.parent_id is not None}
        descendants += [Descendant(child, ancestors[child.id]) for child in children if not child.state.is_terminal]
        parents = [child.id for child in children if child.has_children]
    return descendants


async def end_children(tx: Transaction, decisions: Sequence[Decision[Any]], now: datetime) -> None:
    """Cancel the descendants of executions that these decisions ended: up to 1,000 now, the others by a duty.

    The caller has locked the flows of these executions.
    """
    left = MAX_CANCELLED
    for decision in decisions:
        parent = decision.after
        if parent is not None and parent.flow is not None and parent.has_children:
            descendants = await read_descendants(tx, [parent.id])
            await end_descendants(tx, parent.flow, descendants, _command_of(parent), now, limit=left)
            left = max(0, left - len(descendants))


def _command_of(parent: Execution) -> CancelCommand:
    """Return the command that cancels the descendants of an ended execution, for the reason of its end."""
    if parent.state is State.CANCELLED:
        request = parent.cancel_request
        assert request is not None, "only a requested cancel ends children later"
        audit = AuditInfo(principal=request.principal, reason=request.reason)
        return CancelCommand(audit=audit, source=request.source, children=True)
    audit = AuditInfo(principal=ENGINE, reason=f"its parent {parent.id} ended: {parent.failure_message}")
    return CancelCommand(audit=audit, source=parent.failure_category or ENGINE, children=True)


async def end_descendants(
    tx: Transaction,
    flow_id: UUID,
    descendants: Sequence[Descendant],
    command: CancelCommand,
    now: datetime,
    *,
    limit: int | None = None,
) -> None:
    """Cancel members of a locked flow: the first 1,000 or `limit` now, the others by a request that a duty carries out.

    Parents come before their children, so a postponed member has only postponed children.
    """
    if not descendants:
        return
    allowed = MAX_CANCELLED if limit is None else limit
    first, rest = descendants[:allowed], descendants[allowed:]
    ids = [descendant.member.id for descendant in first]
    details = {ancestor: _details(command, ancestor) for ancestor in {descendant.ancestor for descendant in first}}
    await tx.members.lock([descendant.member.id for descendant in descendants])
    request = command.request(now)
    terminations = [cancellation(each.member.id, request, details[each.ancestor]) for each in first]
    if rest:
        await tx.members.request_cancel([descendant.member.id for descendant in rest], request)
    if not first:
        return
    await tx.members.end(terminations, now)
    await tx.waits.end(ids, now)
    # The caller may have ended the parent of these members, which changes the flow, so the flow is read again.
    flows = await tx.flows.lock(None, [flow_id])
    ends = [member_end(descendant.member, State.CANCELLED, command.source) for descendant in first]
    await resolve(tx, flows, ends, now)


def _details(command: CancelCommand, ancestor: UUID | None) -> dict[str, object]:
    cause = {} if ancestor is None else {"cause": "parent", "parent": str(ancestor)}
    return {"source": command.source, **cause}
