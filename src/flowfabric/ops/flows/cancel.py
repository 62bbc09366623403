"""cancel_flow: mark a flow as cancelled and end its members, up to 1,000 in one transaction.

After the commit that marks the flow, its edges no longer release, skip or cancel members. Later transactions, of the
caller or of the reconciler, end the members that the first one does not reach. `sweep_at` is set while such members are
left. The same sweep ends the siblings of a decided group that the transaction of the winner did not reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.executions.states import State
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.outcomes import FlowAlreadyTerminal
from flowfabric.core.flows.records import (
    FLOW_CANCEL,
    CancelPolicy,
    FlowCancel,
    FlowRecord,
    FlowState,
    MemberFacts,
)
from flowfabric.core.flows.resolution import MAX_CANCELLED, Resolution
from flowfabric.ops.flows.extend import lock_flow, seal_drafts
from flowfabric.ops.flows.resolve import cancellation, flow_event, member_end, put_flows, resolve, resolve_flows
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_MAX_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancelRequest:
    """An operator's cancellation of a flow."""

    flow_id: UUID
    policy: CancelPolicy
    source: str
    audit: AuditInfo


@dataclass(frozen=True, slots=True)
class CancelledMembers:
    """The members that one transaction cancelled, and how many are left to cancel."""

    ids: tuple[UUID, ...] = ()
    remaining: int = 0


@operation()
async def cancel_flow(
    tx: Transaction, namespace: str, request: FlowCancelRequest
) -> CancelledMembers | FlowAlreadyTerminal:
    """Cancel a flow, with up to 1,000 of its members. If the flow has ended, return how it ended."""
    flow = await lock_flow(tx, namespace, request.flow_id)
    if flow.cancel is not None:
        return FlowAlreadyTerminal(FlowState.CANCELLED, flow.cancel.policy, flow.cancel.reason, flow.cancel.source)
    if flow.finished is not None:
        return FlowAlreadyTerminal(flow.finished)
    now = await tx.now()
    audit = request.audit
    cancel = FlowCancel(
        policy=request.policy, reason=audit.reason, source=request.source, principal=audit.principal, at=now
    )
    flow = replace(flow, cancel=cancel, sealed=True, changed_at=now)
    details = {"policy": request.policy.value, "source": request.source}
    event = flow_event(flow, "cancel_requested", now, principal=audit.principal, reason=audit.reason, details=details)
    await tx.events.append([event])
    cancelled = await _cancel_members(tx, flow, MAX_CANCELLED, now)
    if not flow.is_frozen:
        # The edges of the flow still resolve, but callers can no longer seal its drafts.
        await seal_drafts(tx, flow, now)
    return cancelled


@operation()
async def sweep_flow(tx: Transaction, namespace: str, flow_id: UUID) -> CancelledMembers:
    """Cancel more members of a cancelled flow."""
    flow = await lock_flow(tx, namespace, flow_id)
    if flow.sweep_at is None or not flow.is_frozen:
        return CancelledMembers()
    now = await tx.now()
    return await _cancel_members(tx, replace(flow, changed_at=now), MAX_CANCELLED, now)


async def sweep(tx: Transaction, ids: Sequence[UUID]) -> int:
    """Cancel up to 1,000 members that earlier transactions did not reach.

    Return how many were cancelled; a flow without such members counts as one.
    """
    flows = await tx.flows.lock_free(ids)
    now, done = await tx.now(), 0
    for flow in flows.values():
        if flow.sweep_at is None or done >= MAX_CANCELLED:
            continue
        if flow.is_frozen:
            more = len((await _cancel_members(tx, replace(flow, changed_at=now), MAX_CANCELLED - done, now)).ids)
        else:
            more = await _cancel_rest(tx, flow, now)
        done += max(more, 1)
    return done


async def _cancel_members(tx: Transaction, flow: FlowRecord, limit: int, now: datetime) -> CancelledMembers:
    """Cancel up to `limit` members."""
    candidates = await _live_members(tx, flow, limit)
    facts = await _lock_members(tx, flow, candidates) if candidates else {}
    ids, cancel = list(facts), flow.cancel
    if cancel is not None and ids:
        details = {"source": cancel.source, "cause": FLOW_CANCEL, "flow": str(flow.id)}
        await tx.members.end([cancellation(id_, cancel, details) for id_ in ids], now)
        await tx.waits.end(ids, now)
    remaining = len(await _live_members(tx, flow, _MAX_COUNTED)) if len(candidates) == limit else 0
    if flow.is_frozen:
        flow = replace(flow, sweep_at=now if remaining else None)
    # If there are no members to end, this write may already finish the flow.
    await put_flows(tx, [flow], now)
    if cancel is not None and ids:
        ends = [member_end(member, State.CANCELLED, cancel.source) for member in facts.values()]
        await resolve(tx, {flow.id: flow}, ends, now)
    return CancelledMembers(tuple(ids), remaining)


async def _live_members(tx: Transaction, flow: FlowRecord, limit: int) -> list[UUID]:
    if flow.cancel is None or flow.cancel.policy is CancelPolicy.FLOW_ONLY:
        return []
    only_unstarted = flow.cancel.policy is CancelPolicy.CANCEL_PENDING
    return await tx.members.live(flow.id, only_unstarted=only_unstarted, limit=limit)


async def _lock_members(tx: Transaction, flow: FlowRecord, ids: Sequence[UUID]) -> dict[UUID, MemberFacts]:
    """Lock members and return their facts. The policy `CANCEL_PENDING` leaves out members that have started."""
    await tx.members.lock(ids)
    facts = await tx.members.facts(ids)
    spares_started = flow.cancel is not None and flow.cancel.policy is CancelPolicy.CANCEL_PENDING
    return {id_: facts[id_] for id_ in ids if not (spares_started and facts[id_].started)}


async def _cancel_rest(tx: Transaction, flow: FlowRecord, now: datetime) -> int:
    """Cancel the remaining siblings of decided groups, and return how many members were cancelled."""
    resolution = Resolution(now)
    for group in await tx.edges.sweeping_groups([flow.id]):
        resolution.sweep(group)
    flow = replace(flow, sweep_at=None, changed_at=now)
    await tx.flows.put([flow])
    await resolve_flows(tx, {flow.id: flow}, resolution, [])
    return len(resolution.cancelled)
