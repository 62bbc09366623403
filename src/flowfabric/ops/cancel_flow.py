"""cancel_flow: marks a flow as cancelled and ends its members, up to 1,000 in one transaction.

From the commit that marks it on, its edges release, skip and cancel nobody. What one transaction does not reach is
ended by the next ones, by the caller or by the reconciler: `sweep_at` says that there is something left. The same
sweep ends the siblings of a decided group that the winner's own transaction did not reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.flow_outcomes import FlowAlreadyCancelled
from flowfabric.core.flows import (
    FLOW_CANCEL,
    CancelPolicy,
    Flow,
    FlowCancel,
    MemberEnd,
    MemberFacts,
    counts_as_bad,
)  # fmt: skip
from flowfabric.core.frozen import replace
from flowfabric.core.membership import MOST_CANCELLED, Resolution
from flowfabric.core.requests import Command
from flowfabric.core.states import State
from flowfabric.ops.grow_flow import check_alive, lock_flow, seal_drafts
from flowfabric.ops.resolving import flow_event, put_flows, settle_flows
from flowfabric.store.flows import Ending
from flowfabric.store.transaction import Transaction

_MOST_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancelRequest:
    """An operator's wish to cancel a flow."""

    policy: CancelPolicy
    source: str
    command: Command


async def cancel_flow(
    tx: Transaction, namespace: str, flow_id: UUID, request: FlowCancelRequest
) -> tuple[int, int] | FlowAlreadyCancelled:
    """How many members were cancelled, and how many are left; a second call hears of the first."""
    flow = await lock_flow(tx, namespace, flow_id)
    if flow.cancel is not None:
        return FlowAlreadyCancelled(flow.cancel.policy, flow.cancel.reason, flow.cancel.source)
    check_alive(flow)
    now = await tx.now()
    command = request.command
    cancel = FlowCancel(
        policy=request.policy, reason=command.reason, source=request.source, principal=command.principal, at=now
    )
    flow = replace(flow, cancel=cancel, sealed=True, changed_at=now)
    details = {"policy": request.policy.value, "source": request.source}
    event = flow_event(
        flow, "cancel_requested", now, principal=command.principal, reason=command.reason, details=details
    )
    await tx.events.append([event])
    answer = await _cancel_members(tx, flow, MOST_CANCELLED, now)
    if not flow.is_frozen:
        # Its edges go on, and nobody can seal it any more.
        await seal_drafts(tx, flow, now)
    return answer


async def sweep_flow(tx: Transaction, namespace: str, flow_id: UUID) -> tuple[int, int]:
    """How many more members of a cancelled flow were cancelled, and how many are left."""
    flow = await lock_flow(tx, namespace, flow_id)
    if flow.sweep_at is None or not flow.is_frozen:
        return 0, 0
    now = await tx.now()
    return await _cancel_members(tx, replace(flow, changed_at=now), MOST_CANCELLED, now)


async def sweep(tx: Transaction, ids: Sequence[UUID]) -> int:
    """How many members of these flows were cancelled that an earlier transaction left: up to 1,000."""
    flows = await tx.flows.lock_free(ids)
    now, done = await tx.now(), 0
    for flow in flows.values():
        if flow.sweep_at is None or done >= MOST_CANCELLED:
            continue
        if flow.is_frozen:
            more, _ = await _cancel_members(tx, replace(flow, changed_at=now), MOST_CANCELLED - done, now)
        else:
            more = await _cancel_rest(tx, flow, now)
        done += max(more, 1)
    return done


async def _cancel_members(tx: Transaction, flow: Flow, most: int, now: datetime) -> tuple[int, int]:
    """How many members were cancelled, and how many are left."""
    found = await _to_cancel(tx, flow, most)
    facts = await _locked(tx, flow, found) if found else {}
    ids = list(facts)
    if ids:
        await tx.flows.members.end([_ending(flow, id_) for id_ in ids], now)
        await tx.waits.end(ids, now)
    left = len(await _to_cancel(tx, flow, _MOST_COUNTED)) if len(found) == most else 0
    if flow.is_frozen:
        flow = replace(flow, sweep_at=now if left else None)
    # Without members to end, this alone may finish it.
    await put_flows(tx, [flow], now)
    if ids:
        resolution = Resolution(now, frozen={flow.id})
        resolution.end(dict.fromkeys(ids, State.CANCELLED))
        await settle_flows(tx, {flow.id: flow}, resolution, [_end(flow, facts[id_]) for id_ in ids])
    return len(ids), left


async def _to_cancel(tx: Transaction, flow: Flow, most: int) -> list[UUID]:
    if flow.cancel is None or flow.cancel.policy is CancelPolicy.FLOW_ONLY:
        return []
    only_unstarted = flow.cancel.policy is CancelPolicy.CANCEL_PENDING
    return await tx.flows.members.live(flow.id, only_unstarted=only_unstarted, limit=most)


async def _locked(tx: Transaction, flow: Flow, ids: Sequence[UUID]) -> dict[UUID, MemberFacts]:
    """What is known of these members once they are locked; without those that somebody has claimed since, if only
    what has not started is to end."""
    await tx.flows.members.lock(ids)
    facts = await tx.flows.members.facts(ids)
    spares_started = flow.cancel is not None and flow.cancel.policy is CancelPolicy.CANCEL_PENDING
    return {id_: facts[id_] for id_ in ids if not (spares_started and facts[id_].started)}


async def _cancel_rest(tx: Transaction, flow: Flow, now: datetime) -> int:
    """The siblings that are left of groups which are decided."""
    resolution = Resolution(now)
    for group in await tx.flows.edges.sweeping([flow.id]):
        resolution.sweep(group)
    flow = replace(flow, sweep_at=None, changed_at=now)
    await tx.flows.put([flow])
    await settle_flows(tx, {flow.id: flow}, resolution, [])
    return len(resolution.cancelled)


def _ending(flow: Flow, id_: UUID) -> Ending:
    assert flow.cancel is not None, "it is being cancelled"
    cancel = flow.cancel
    return Ending(
        id=id_, state=State.CANCELLED, cancelled_by=cancel.source, principal=cancel.principal, reason=cancel.reason,
        details={"source": cancel.source, "cause": FLOW_CANCEL, "flow": str(flow.id)},
    )  # fmt: skip


def _end(flow: Flow, member: MemberFacts) -> MemberEnd:
    source = flow.cancel.source if flow.cancel else None
    return MemberEnd(
        id=member.id, flow_id=member.flow_id, parent_id=member.parent_id, state=State.CANCELLED, is_root=False,
        is_bad=counts_as_bad(State.CANCELLED, source), ran=False,
    )  # fmt: skip
