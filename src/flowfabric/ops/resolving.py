"""What follows in their flows when executions end: edges, groups, members, the flow itself, and waiting parents.

The rows of the flows are locked, so everything is worked out first (`core/membership.py`) and then written by a few
statements over all members, edges, groups and flows that it concerns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.flows import SIBLING, EdgeGroup, Flow, GroupState, MemberEnd, MemberFacts, counts_as_bad, finished
from flowfabric.core.frozen import replace
from flowfabric.core.membership import Resolution
from flowfabric.core.records import Event
from flowfabric.core.states import BlockingReason, State
from flowfabric.ops.child_signals import signal_waiting
from flowfabric.store.flows import Closing, Ending, Release
from flowfabric.store.transaction import Transaction

ENGINE = "engine"
DEPENDENCY_IMPOSSIBLE = "dependency_impossible"
_ROUNDS_BEFORE_ALL_IS_READ = 6
_SKIPPED = {"cause": DEPENDENCY_IMPOSSIBLE}
_LOST = {"source": SIBLING}
_WHY_SIBLINGS = {"fired": "sibling_group_fired", "impossible": "sibling_group_impossible"}


async def resolve(
    tx: Transaction, flows: Mapping[UUID, Flow], ends: Sequence[MemberEnd], now: datetime, *,
    were_active: Sequence[UUID] = (),
) -> None:  # fmt: skip
    """Writes what follows from these ends, to the last consequence. The flows are locked. What is open on those that
    `were_active` is closed too."""
    resolution = Resolution(now, frozen={id_ for id_, flow in flows.items() if flow.is_frozen})
    resolution.end({end.id: end.state for end in ends})
    await settle_flows(tx, flows, resolution, ends, were_active=were_active)


async def settle_flows(
    tx: Transaction, flows: Mapping[UUID, Flow], resolution: Resolution, ends: Sequence[MemberEnd], *,
    were_active: Sequence[UUID] = (),
) -> None:  # fmt: skip
    """Works a resolution out and writes it; `ends` are those that are written already, and `were_active` those of them
    on which something may still be open."""
    await _work_out(tx, resolution, list(flows))
    now, caused = resolution.now, _caused(resolution)
    await _move_members(tx, resolution)
    groups = await _changed_groups(tx, resolution, [end.id for end in (*ends, *caused) if not end.ran])
    counted = _counted(flows, resolution, [*ends, *caused])
    edges = resolution.edges
    if any(_is_over(flow) and _may_have_failed(flow) for flow in counted):
        # Whether something took a bad end up is told by its edges, so these are written first.
        await tx.flows.settle(edges, groups, [], now)
        edges, groups = [], []
    closing = Closing(were_active=were_active, others=[end.id for end in caused])
    await tx.flows.settle(edges, groups, await _finished(tx, counted, now), now, closing)
    all_ends = (*ends, *caused)
    await signal_waiting(tx, {end.id: end.state for end in all_ends}, now, {end.id: end.parent_id for end in all_ends})


async def _work_out(tx: Transaction, resolution: Resolution, flow_ids: Sequence[UUID]) -> None:
    rounds = 0
    while not resolution.is_settled:
        wanted = resolution.wants_edges()
        if wanted and rounds < _ROUNDS_BEFORE_ALL_IS_READ:
            resolution.learn(wanted, await tx.flows.edges.leading_from(wanted))
        elif wanted:
            # A long chain of consequences: reading all edges once is cheaper than one look for each link.
            found = await tx.flows.edges.within(flow_ids)
            resolution.learn([item.edge.upstream_id for item in found], found)
            resolution.knows_all = True
        resolution.advance()
        if resolution.closing and not resolution.wants_edges():
            await _cancel_siblings(tx, resolution)
        rounds += 1


async def _cancel_siblings(tx: Transaction, resolution: Resolution) -> None:
    into = await tx.flows.edges.open_into([downstream for downstream, _ in resolution.closing])
    siblings = [member.id for _, member in into]
    if siblings:
        resolution.learn(siblings, await tx.flows.edges.leading_from(siblings))
    resolution.cancel_siblings(into)


def _caused(resolution: Resolution) -> list[MemberEnd]:
    skipped = [_member_end(member, State.SKIPPED) for member in resolution.skipped.values()]
    return skipped + [_member_end(member, State.CANCELLED) for member, _ in resolution.cancelled.values()]


def _member_end(member: MemberFacts, state: State) -> MemberEnd:
    return MemberEnd(
        id=member.id, flow_id=member.flow_id, parent_id=member.parent_id, state=state, ran=False,
        is_root=member.flow_id is None and member.has_children, is_bad=counts_as_bad(state, SIBLING),
    )  # fmt: skip


async def _move_members(tx: Transaction, resolution: Resolution) -> None:
    """All members that go on or end, by one statement each; their rows are taken in id order."""
    now = resolution.now
    endings = [_skip(member) for member in resolution.skipped.values()]
    endings += [_cancel(member, why) for member, why in resolution.cancelled.values()]
    releases = [release_of(member, now) for member in resolution.released.values()]
    if not endings and not releases:
        return
    await tx.flows.members.lock([item.id for item in endings] + [item.id for item in releases])
    if endings:
        await tx.flows.members.end(endings, now)
    if releases:
        await tx.flows.members.release(releases, now)


def release_of(member: MemberFacts, now: datetime) -> Release:
    """A member whose group has fired goes on at once, or when the time has come that it was submitted with."""
    if member.ready_at is not None and member.ready_at > now:
        return Release(member.id, State.DELAYED, BlockingReason.WAITING_FOR_DELAY, member.ready_at)
    return Release(member.id, State.WAITING, BlockingReason.WAITING_FOR_WORKER, None)


def _skip(member: MemberFacts) -> Ending:
    return Ending(
        id=member.id, state=State.SKIPPED, cancelled_by=None, principal=ENGINE, reason=DEPENDENCY_IMPOSSIBLE,
        details=_SKIPPED,
    )  # fmt: skip


def _cancel(member: MemberFacts, why: str) -> Ending:
    return Ending(
        id=member.id, state=State.CANCELLED, cancelled_by=SIBLING, principal=ENGINE, reason=_WHY_SIBLINGS[why],
        details=_LOST,
    )  # fmt: skip


async def _changed_groups(tx: Transaction, resolution: Resolution, ended: Sequence[UUID]) -> list[EdgeGroup]:
    changed = {key: resolution.groups[key] for key in resolution.changed}
    if ended:
        # Whoever ended by something else than running to the end may leave an open group behind.
        for group in await tx.flows.edges.groups_of(ended):
            if group.state is GroupState.OPEN and group.key not in resolution.groups:
                changed[group.key] = replace(group, state=GroupState.CLOSED)
    return list(changed.values())


def _counted(flows: Mapping[UUID, Flow], resolution: Resolution, ends: Sequence[MemberEnd]) -> list[Flow]:
    """The flows of which members have ended."""
    ended = Counter(end.flow_id for end in ends)
    badly = Counter(end.flow_id for end in ends if end.is_bad)
    roots = {end.id for end in ends if end.is_root}
    return [
        replace(
            flow, open_members=flow.open_members - ended[id_], ended_badly=flow.ended_badly + badly[id_],
            sealed=flow.sealed or id_ in roots, changed_at=resolution.now,
            sweep_at=resolution.now if id_ in resolution.sweeping else flow.sweep_at,
        )
        for id_, flow in flows.items()
        if ended[id_] or id_ in roots or id_ in resolution.sweeping
    ]  # fmt: skip


async def put_flows(tx: Transaction, flows: Sequence[Flow], now: datetime) -> None:
    """Writes flows; those that are sealed and have no open member are finished, with one event each."""
    written = await _finished(tx, flows, now)
    if written:
        await tx.flows.put(written)


async def _finished(tx: Transaction, flows: Sequence[Flow], now: datetime) -> list[Flow]:
    written, events = [], []
    for flow in flows:
        if _is_over(flow):
            flow = await _finish(tx, flow, now)
            events.append(flow_event(flow, "finished", now, details={"state": str(flow.finished)}))
        written.append(flow)
    if events:
        await tx.events.append(events)
    return written


def _is_over(flow: Flow) -> bool:
    return flow.sealed and flow.open_members == 0 and flow.finished is None


def _may_have_failed(flow: Flow) -> bool:
    return flow.ended_badly > 0 and flow.cancel is None


async def _finish(tx: Transaction, flow: Flow, now: datetime) -> Flow:
    bad_ends = await tx.flows.bad_ends(flow.id) if _may_have_failed(flow) else []
    left = [end for end in bad_ends if counts_as_bad(end.state, end.cancelled_by) and not end.is_taken_up]
    return replace(flow, finished=finished(flow, len(left)), ended_at=now)


def flow_event(flow: Flow, name: str, now: datetime, **facts: object) -> Event:
    """An event of a flow itself."""
    details = {"name": flow.name, **facts.pop("details", {})}  # type: ignore[dict-item]
    return Event(
        namespace=flow.namespace, family="flow", name=name, at=now, lane="", flow_id=flow.id,
        tags=flow.tags or None, details=details, **facts,  # type: ignore[arg-type]
    )  # fmt: skip
