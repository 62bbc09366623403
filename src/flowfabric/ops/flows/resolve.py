"""Write the effects of ended executions on their flows: edges, groups, members, the flow, and waiting parents.

The rows of the flows are locked, so no other transaction changes them. So `core/flows/resolution.py` first decides
everything in memory. Then a few statements write all affected members, edges, groups and flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import CancelRequest, Event
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.records import (
    SIBLING,
    UPSTREAM_FAILED,
    EdgeGroup,
    EdgeState,
    FlowCancel,
    FlowRecord,
    GroupState,
    MemberEnd,
    MemberFacts,
    StoredEdge,
    counts_as_bad,
    final_state,
    resolve_edge,
)
from flowfabric.core.flows.resolution import Resolution
from flowfabric.ops.waits.child_signals import signal_waiting
from flowfabric.store.records import Closing, MemberTermination, Release
from flowfabric.store.transaction import Transaction

ENGINE = "engine"
DEPENDENCY_IMPOSSIBLE = "dependency_impossible"
_MAX_ROUNDS = 6
_SKIPPED = {"cause": DEPENDENCY_IMPOSSIBLE}
_LOST = {"source": SIBLING}
_SIBLING_REASONS = {"fired": "sibling_group_fired", "impossible": "sibling_group_impossible"}


async def resolve(
    tx: Transaction,
    flows: Mapping[UUID, FlowRecord],
    ends: Sequence[MemberEnd],
    now: datetime,
    *,
    were_active: Sequence[UUID] = (),
) -> None:
    """Write everything that these ends of executions change in their locked flows.

    Also close the open waits of the executions in `were_active`.
    """
    resolution = Resolution(now, frozen={id_ for id_, flow in flows.items() if flow.is_frozen})
    resolution.failures = {end.id: end.failure for end in ends if end.failure is not None}
    resolution.end({end.id: end.state for end in ends})
    await resolve_flows(tx, flows, resolution, ends, were_active=were_active)


async def resolve_flows(
    tx: Transaction,
    flows: Mapping[UUID, FlowRecord],
    resolution: Resolution,
    ends: Sequence[MemberEnd],
    *,
    were_active: Sequence[UUID] = (),
) -> None:
    """Complete a resolution and write it.

    The executions in `ends` are already stored as ended. Those in `were_active` may still have open waits.
    """
    await _complete(tx, resolution, list(flows))
    now, caused = resolution.now, _caused_ends(resolution)
    await _move_members(tx, resolution)
    groups = await _changed_groups(tx, resolution, [end.id for end in (*ends, *caused) if not end.ran])
    counted = _count_ends(flows, resolution, [*ends, *caused])
    edges = resolution.edges
    if any(_is_over(flow) and _may_have_failed(flow) for flow in counted):
        # A later query reads from the edges whether a member handled a bad end, so the edges are written first.
        await tx.flows.settle(edges, groups, [], now)
        edges, groups = [], []
    closing = Closing(were_active=were_active, others=[end.id for end in caused])
    await tx.flows.settle(edges, groups, await _finish_complete(tx, counted, now), now, closing)
    all_ends = (*ends, *caused)
    await signal_waiting(tx, {end.id: end.state for end in all_ends}, now, {end.id: end.parent_id for end in all_ends})


async def consider_groups(
    tx: Transaction, flow: FlowRecord, groups: Sequence[tuple[EdgeGroup, MemberFacts]], now: datetime
) -> None:
    """Release or skip the members whose groups are decided, and write all consequences in their locked flow."""
    resolution = Resolution(now, frozen={flow.id} if flow.is_frozen else set())
    failures = await _read_failures(tx, [group.downstream_id for group, _ in groups if group.impossible])
    for group, member in groups:
        resolution.consider(group, member, failures.get(member.id))
    await resolve_flows(tx, {flow.id: flow}, resolution, [])


async def _read_failures(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return, for each member, the failure of an upstream member that made an edge impossible, if there is one."""
    edges = await tx.edges.into(ids) if ids else []
    impossible = [(edge.downstream_id, upstream) for edge, upstream in edges if edge.state is EdgeState.IMPOSSIBLE]
    return {id_: upstream.failure for id_, upstream in impossible if upstream.failure is not None}


def resolve_new_edge(edge: StoredEdge, upstream: MemberFacts, now: datetime) -> StoredEdge:
    """Return the new edge, already resolved if its upstream member has ended."""
    state = resolve_edge(edge.kind, upstream.state, after_failure=upstream.failure is not None)
    return edge if state is EdgeState.OPEN else replace(edge, state=state, resolved_at=now)


async def _complete(tx: Transaction, resolution: Resolution, flow_ids: Sequence[UUID]) -> None:
    rounds = 0
    while not resolution.is_settled:
        wanted = resolution.missing_edges()
        if wanted and rounds < _MAX_ROUNDS:
            resolution.add_edges(wanted, await tx.edges.open_from(wanted))
        elif wanted:
            # In a long chain, reading all edges once is cheaper than one read per link.
            edges = await tx.edges.open_in(flow_ids)
            resolution.add_edges([edge.edge.upstream_id for edge in edges], edges)
            resolution.knows_all = True
        resolution.advance()
        if resolution.closing and not resolution.missing_edges():
            await _cancel_siblings(tx, resolution)
        rounds += 1


async def _cancel_siblings(tx: Transaction, resolution: Resolution) -> None:
    into = await tx.edges.open_into([downstream for downstream, _ in resolution.closing])
    siblings = [member.id for _, member in into]
    if siblings:
        resolution.add_edges(siblings, await tx.edges.open_from(siblings))
    resolution.cancel_siblings(into)


def _caused_ends(resolution: Resolution) -> list[MemberEnd]:
    skipped = [member_end(member, State.SKIPPED, SIBLING) for member in resolution.skipped.values()]
    return skipped + [member_end(member, State.CANCELLED, SIBLING) for member, _ in resolution.cancelled.values()]


def member_end(member: MemberFacts, state: State, cancelled_by: str | None) -> MemberEnd:
    """Return the end record of a member that was skipped or cancelled, and so was not ended by its own worker."""
    return MemberEnd(
        id=member.id,
        flow_id=member.flow_id,
        parent_id=member.parent_id,
        state=state,
        ran=False,
        is_root=member.flow_id is None and member.has_children,
        is_bad=counts_as_bad(state, cancelled_by),
        name=member.name,
    )


async def _move_members(tx: Transaction, resolution: Resolution) -> None:
    """Lock all affected members in id order. Then end members by one statement, and release members by another."""
    now = resolution.now
    details = {failure: {**_SKIPPED, "failure": failure} for failure in resolution.failures.values()}
    terminations = [
        _skip(id_, failure, _SKIPPED if failure is None else details[failure])
        for id_, failure in ((id_, resolution.failures.get(id_)) for id_ in resolution.skipped)
    ]
    terminations += [_cancel(member, cause) for member, cause in resolution.cancelled.values()]
    releases = [release_of(member, now) for member in resolution.released.values()]
    if not terminations and not releases:
        return
    await tx.members.lock([change.id for change in terminations] + [change.id for change in releases])
    if terminations:
        await tx.members.end(terminations, now)
    if releases:
        await tx.members.release(releases, now)


def release_of(member: MemberFacts, now: datetime) -> Release:
    """Return how to release a member whose group has fired: now, or at its `ready_at` if that is later."""
    if member.ready_at is not None and member.ready_at > now:
        return Release(member.id, State.DELAYED, BlockingReason.WAITING_FOR_DELAY, member.ready_at)
    return Release(member.id, State.WAITING, BlockingReason.WAITING_FOR_WORKER, None)


def cancellation(id_: UUID, cancel: FlowCancel | CancelRequest, details: Mapping[str, object]) -> MemberTermination:
    """Return the termination of a member that an operator or a worker cancels."""
    return MemberTermination(
        id=id_,
        state=State.CANCELLED,
        cancelled_by=cancel.source,
        principal=cancel.principal,
        reason=cancel.reason,
        details=details,
    )


def _skip(id_: UUID, failure: str | None, details: Mapping[str, object]) -> MemberTermination:
    return MemberTermination(
        id=id_,
        state=State.SKIPPED,
        cancelled_by=None,
        principal=ENGINE,
        reason=DEPENDENCY_IMPOSSIBLE,
        details=details,
        failure_message=failure,
        failure_category=None if failure is None else UPSTREAM_FAILED,
    )


def _cancel(member: MemberFacts, cause: str) -> MemberTermination:
    return MemberTermination(
        id=member.id,
        state=State.CANCELLED,
        cancelled_by=SIBLING,
        principal=ENGINE,
        reason=_SIBLING_REASONS[cause],
        details=_LOST,
    )


async def _changed_groups(tx: Transaction, resolution: Resolution, ended: Sequence[UUID]) -> list[EdgeGroup]:
    changed = {key: resolution.groups[key] for key in resolution.changed}
    if ended:
        # An execution that ended without completing may still have an open group, which is closed here.
        for group in await tx.edges.groups_of(ended):
            if group.state is GroupState.OPEN and group.key not in resolution.groups:
                changed[group.key] = replace(group, state=GroupState.CLOSED)
    return list(changed.values())


def _count_ends(
    flows: Mapping[UUID, FlowRecord], resolution: Resolution, ends: Sequence[MemberEnd]
) -> list[FlowRecord]:
    """Return the changed flows, with their counts of open and badly ended members."""
    ended = Counter(end.flow_id for end in ends)
    badly = Counter(end.flow_id for end in ends if end.is_bad)
    roots = {end.id for end in ends if end.is_root}
    return [
        replace(
            flow,
            open_members=flow.open_members - ended[id_],
            ended_badly=flow.ended_badly + badly[id_],
            sealed=flow.sealed or id_ in roots,
            changed_at=resolution.now,
            sweep_at=resolution.now if id_ in resolution.sweeping else flow.sweep_at,
        )
        for id_, flow in flows.items()
        if ended[id_] or id_ in roots or id_ in resolution.sweeping
    ]


async def put_flows(tx: Transaction, flows: Sequence[FlowRecord], now: datetime) -> None:
    """Write flows. If a sealed flow has no open members, finish it and append one event."""
    finished_flows = await _finish_complete(tx, flows, now)
    if finished_flows:
        await tx.flows.put(finished_flows)


async def _finish_complete(tx: Transaction, flows: Sequence[FlowRecord], now: datetime) -> list[FlowRecord]:
    written, events = [], []
    for flow in flows:
        if _is_over(flow):
            flow = await _finish(tx, flow, now)
            events.append(flow_event(flow, "finished", now, details={"state": str(flow.finished)}))
        written.append(flow)
    if events:
        await tx.events.append(events)
    return written


def _is_over(flow: FlowRecord) -> bool:
    return flow.sealed and flow.open_members == 0 and flow.finished is None


def _may_have_failed(flow: FlowRecord) -> bool:
    return (flow.ended_badly > 0 or flow.was_replayed) and flow.cancel is None


async def _finish(tx: Transaction, flow: FlowRecord, now: datetime) -> FlowRecord:
    has_failed = False
    if _may_have_failed(flow):
        bad_ends = await tx.flows.bad_ends(flow.id)
        has_failed = any(counts_as_bad(end.state, end.cancelled_by) and not end.is_taken_up for end in bad_ends)
        has_failed = has_failed or bool(flow.was_replayed and await tx.flows.left_behind(flow.id, 1))
    return replace(flow, finished=final_state(flow, has_failed=has_failed), ended_at=now)


def flow_event(flow: FlowRecord, name: str, now: datetime, **facts: object) -> Event:
    """Return an event of a flow itself."""
    details = {"name": flow.name, **facts.pop("details", {})}  # type: ignore[dict-item]
    return Event(
        namespace=flow.namespace,
        family="flow",
        name=name,
        at=now,
        lane="",
        flow_id=flow.id,
        tags=flow.tags or None,
        details=details,
        **facts,  # type: ignore[arg-type]
    )
