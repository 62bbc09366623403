"""`engine.flows`: graphs of executions, submitted complete or extended while they run."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest, Unavailable
from flowfabric.core.executions.views import Page
from flowfabric.core.flows.graph import Edge, EdgeKind, Graph, Join, Member, MemberSpec, make_member
from flowfabric.core.flows.outcomes import (
    CancelScheduled,
    EdgeAdded,
    FlowAlreadyTerminal,
    FlowCancelled,
    FlowCreated,
    FlowDescription,
    FlowDuplicate,
    FlowPage,
    FlowReplayed,
    Input,
    MemberAdded,
    MemberDuplicate,
    Sealed,
)
from flowfabric.core.flows.records import CancelPolicy, FlowState
from flowfabric.core.flows.resolution import MAX_CANCELLED
from flowfabric.core.ids import derive_id, parse_id, parse_id_prefix, parse_new_id
from flowfabric.core.policy import DEFAULT_POLICY, Policy
from flowfabric.core.validation import parse_choice
from flowfabric.core.waits.schemas import DeclaredSignals
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.cursors import FIRST_ID, LAST_ID, cut_page, id_after, open_cursor, query_digest
from flowfabric.engine.executions import tag_change, wait_until_ended
from flowfabric.engine.repeats import with_ids
from flowfabric.ops.executions.update import set_flow_tags
from flowfabric.ops.flows.cancel import CancelledMembers, FlowCancelRequest, cancel_flow, sweep_flow
from flowfabric.ops.flows.extend import MemberAddition, NewEdge, SealRequest, add_edge, add_member, seal
from flowfabric.ops.flows.read import (
    FlowListing,
    MemberPage,
    describe_flow,
    list_flows,
    list_members,
    read_flow_state,
)
from flowfabric.ops.flows.submit import SUBMIT_FLOW, NewFlow, NewMember, upstream_of
from flowfabric.ops.leases.read import READ_INPUTS
from flowfabric.ops.operator.replay import FlowReplayRequest, read_time, replay_flow

OPERATOR = "operator"
_NO_TAGS: Mapping[str, str] = {}


class Flows:
    """Submits, extends, cancels and reads flows."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def submit(
        self, graph: Graph, *, id: UUID | str | None = None, seal: bool = True
    ) -> FlowCreated | FlowDuplicate:
        """Store a flow with all of its members and edges in one transaction.

        If the call is repeated with the same `id` and graph, it returns `FlowDuplicate`. If the connection breaks
        before the reply, the engine repeats the call under the same id. If the store stays unavailable, the fields of
        the error contain the `id`; pass that id when you repeat the call. A sealed flow has no drafts, accepts no
        members, and finishes automatically. With `seal=False` the flow stays open.
        """
        if not isinstance(graph, Graph):
            raise InvalidRequest("invalid_type", f"graph must be a Graph, not {type(graph).__name__}", field="graph")
        flow_id, sealed = self._new_id(id), validation.boolean(seal, "seal")
        members = self._new_members(flow_id, graph.ordered_members(sealed=sealed))
        fingerprints = {member.drawn.name: member.fingerprint for member in members}
        digest = graph.digest(self._context.namespace, fingerprints, sealed=sealed)
        request = NewFlow(
            id=flow_id,
            name=graph.name,
            tags=dict(graph.tags),
            digest=digest,
            seal=sealed,
            is_given=id is not None,
            members=members,
        )
        return await self._submit(request)

    async def create(
        self, name: str, *, id: UUID | str | None = None, tags: Mapping[str, str] = _NO_TAGS
    ) -> FlowCreated | FlowDuplicate:
        """Store an empty flow that stays open until it is sealed."""
        graph = Graph(name, tags)
        digest = graph.digest(self._context.namespace, sealed=False)
        request = NewFlow(
            id=self._new_id(id),
            name=graph.name,
            tags=dict(graph.tags),
            digest=digest,
            seal=False,
            is_given=id is not None,
        )
        return await self._submit(request)

    async def add(
        self,
        flow_id: UUID | str,
        name: str,
        kind: str,
        payload: bytes = b"",
        *,
        after: Sequence[Member | Edge | str] = (),
        join: Join | None = None,
        draft: bool = False,
        expected_revision: int | None = None,
        encoding: str = "json",
        lane: str = "default",
        priority: int = 0,
        requires: Collection[str] = (),
        policy: Policy = DEFAULT_POLICY,
        tags: Mapping[str, str] = _NO_TAGS,
        ready_at: datetime | None = None,
        delay: validation.Duration | None = None,
        deadline: datetime | None = None,
        signals: DeclaredSignals = (),
        creator: str | None = None,
    ) -> MemberAdded | MemberDuplicate:
        """Add a member with its edges to an open flow.

        The member starts when its edges allow it. A draft does not start before it is sealed. With `expected_revision`,
        the call is refused with `stale_revision` if the graph has been changed since that revision.
        """
        id_, expected = parse_id(flow_id, "flow_id"), _check_revision(expected_revision)
        spec = make_member(
            name,
            kind,
            payload,
            after=after,
            join=join,
            draft=draft,
            encoding=encoding,
            lane=lane,
            priority=priority,
            requires=requires,
            policy=policy,
            tags=tags,
            ready_at=ready_at,
            delay=delay,
            deadline=deadline,
            signals=signals,
            creator=creator,
        )
        [member] = self._new_members(id_, [spec])
        outcome = await self._context.call(add_member, MemberAddition(id_, member, expected))
        self._context.due_at(None)
        return outcome

    async def add_edge(
        self,
        flow_id: UUID | str,
        upstream: Member | UUID | str,
        downstream: Member | UUID | str,
        *,
        kind: EdgeKind | str = EdgeKind.ON_SUCCESS,
        input: str | None = None,
        expected_revision: int | None = None,
    ) -> EdgeAdded:
        """Add an edge between two members, identified by name or id. The downstream member must not have started."""
        id_ = parse_id(flow_id, "flow_id")
        edge = NewEdge(
            flow_id=id_,
            expected_revision=_check_revision(expected_revision),
            upstream_id=_member_id(id_, upstream, "upstream"),
            downstream_id=_member_id(id_, downstream, "downstream"),
            kind=parse_choice(EdgeKind, kind, "kind"),
            input=None if input is None else validation.name(input, "input"),
        )
        return await self._context.call(add_edge, edge)

    async def seal(
        self, flow_id: UUID | str, member: Member | UUID | str | None = None, *, expected_revision: int | None = None
    ) -> Sealed:
        """Seal a draft member, so that it starts when its edges allow it.

        Without a member, seal all drafts and the flow itself.
        """
        id_, expected = parse_id(flow_id, "flow_id"), _check_revision(expected_revision)
        member_id = None if member is None else _member_id(id_, member, "member")
        outcome = await self._context.call(seal, SealRequest(id_, member_id, expected))
        self._context.due_at(None)
        return outcome

    async def cancel(
        self,
        flow_id: UUID | str,
        reason: str = "",
        *,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
        wait: validation.Duration | None = None,
        source: str = "operator_override",
        principal: str = "operator",
    ) -> FlowCancelled | CancelScheduled | FlowAlreadyTerminal:
        """Cancel a flow, and with it the members that `policy` selects.

        `policy` selects all open members, only members that have not started, or no members. The first transaction ends
        up to 1,000 members. The other members are ended by this call for up to `wait`, and after that by the
        reconcilers. The result has the number of members that this call cancelled, and up to 1,000 of their ids. If the
        flow had finished or was cancelled before, return that outcome and change nothing.
        """
        context = self._context
        request = FlowCancelRequest(
            flow_id=parse_id(flow_id, "flow_id"),
            policy=parse_choice(CancelPolicy, policy, "policy"),
            source=validation.name(source, "source"),
            audit=audit_info(principal, reason),
        )
        limit_s = 0.0 if wait is None else validation.duration(wait, "wait").total_seconds()
        stop_at = time.monotonic() + limit_s
        outcome = await context.call(cancel_flow, request)
        context.due_at(None)
        # If another caller has cancelled this flow, a call with `wait` helps to cancel the remaining members.
        batch = CancelledMembers(remaining=1) if isinstance(outcome, FlowAlreadyTerminal) else outcome
        ids = list(batch.ids)
        while batch.remaining and time.monotonic() < stop_at:
            batch = await context.call(sweep_flow, request.flow_id)
            ids += batch.ids
        if isinstance(outcome, FlowAlreadyTerminal):
            return outcome
        cancelled = FlowCancelled(len(ids), tuple(ids[:MAX_CANCELLED]), len(ids) > MAX_CANCELLED)
        if batch.remaining == 0:
            return cancelled
        return CancelScheduled(batch.remaining, cancelled.cancelled, cancelled.members, cancelled.is_truncated)

    async def replay(
        self,
        flow_id: UUID | str,
        reason: str = "",
        *,
        failed: bool,
        ended_until: datetime | None = None,
        principal: str = OPERATOR,
    ) -> FlowReplayed:
        """Run all failed and expired members again, and bring back the members that were skipped because of failures.

        `failed` must be True. Only members that ended until `ended_until` are replayed, by default until now. After a
        lost reply, `Unavailable` carries this time as the field `ended_until`. Repeat the call with it, so that it
        replays no member twice. Each transaction replays up to 100 members, and a repeat continues after an
        interruption. Members that were cancelled stay cancelled. A child is left to its parent if the parent received
        the failure, still runs, failed too, or was replayed since then.
        """
        context, id_ = self._context, parse_id(flow_id, "flow_id")
        if not validation.boolean(failed, "failed"):
            raise InvalidRequest("invalid_choice", "failed must be True; only failed members can be replayed together")
        audit = audit_info(principal, reason)
        if ended_until is None:
            until = await context.call(read_time, None)
        else:
            until = validation.timestamp(ended_until, "ended_until")
        ids: list[UUID] = []
        exhausted: dict[UUID, None] = {}
        revived, after = 0, FIRST_ID
        while True:
            try:
                batch = await context.call(replay_flow, FlowReplayRequest(id_, until, after, audit))
            except Unavailable as error:
                raise with_ids(error, ended_until=until) from error
            ids += batch.replayed
            exhausted |= dict.fromkeys(batch.exhausted)
            revived += batch.revived
            if batch.last is None:
                break
            after = batch.last
        context.due_at(None)
        return FlowReplayed(
            replayed=len(ids),
            revived=revived,
            members=tuple(ids[:MAX_CANCELLED]),
            is_truncated=len(ids) > MAX_CANCELLED,
            exhausted=tuple(exhausted)[:MAX_CANCELLED],
            ended_until=until,
        )

    async def set_tags(self, flow_id: UUID | str, tags: Mapping[str, str | None]) -> dict[str, str]:
        """Set the given tags, remove each tag with the given value None, and return all tags of the flow.

        This is allowed in every state. Members have their own tags.
        """
        return await self._context.call(set_flow_tags, tag_change(flow_id, tags, "flow_id"))

    async def describe(self, flow_id: UUID | str) -> FlowDescription:
        """Return the flow with its graph: the state of every edge, and the join and counters of every group."""
        return await self._context.call(describe_flow, parse_id(flow_id, "flow_id"))

    async def members(self, flow_id: UUID | str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page of the members of the flow, including children."""
        id_, size = parse_id(flow_id, "flow_id"), validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(self._context.namespace, {"members": id_})
        after = FIRST_ID if cursor is None else open_cursor(cursor, query)
        members = await self._context.call(list_members, MemberPage(id_, after, size + 1))
        return Page(*cut_page(members, size, query, lambda member: member.id))

    async def list(
        self,
        *,
        state: FlowState | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        id_prefix: str | None = None,
        created_from: datetime | None = None,
        created_until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> FlowPage:
        """Return one page of flows that match all filters, newest id first.

        `id_prefix` selects the ids that start with these characters. Pass `next_cursor` of the page to get the next
        one.
        """
        first, last = (FIRST_ID, LAST_ID) if id_prefix is None else parse_id_prefix(id_prefix, "id_prefix")
        filters: dict[str, Any] = {
            "first": first,
            "state": None if state is None else parse_choice(FlowState, state, "state"),
            "name": None if name is None else validation.name(name, "name"),
            "tags": None if tags is None else validation.tags(tags),
            "created_from": None if created_from is None else validation.timestamp(created_from, "created_from"),
            "created_until": None if created_until is None else validation.timestamp(created_until, "created_until"),
        }
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        query = query_digest(self._context.namespace, {"flows": True, "last": last, **filters})
        before = id_after(last) if cursor is None else open_cursor(cursor, query)
        flows = await self._context.call(list_flows, FlowListing(before=before, limit=size + 1, **filters))
        return FlowPage(*cut_page(flows, size, query, lambda flow: flow.id))

    async def inputs(self, execution_id: UUID | str) -> dict[str, Input]:
        """Return the inputs of a member, which are the results of its upstreams, by name."""
        return await self._context.call(READ_INPUTS, parse_id(execution_id, "execution_id"))

    async def wait(self, flow_id: UUID | str, timeout: validation.Duration | None = None) -> FlowState | None:  # noqa: ASYNC109
        """Wait until all members of the sealed flow have ended, and return its state, or None after `timeout`."""
        id_ = parse_id(flow_id, "flow_id")
        return await wait_until_ended(self._context.wakeups, id_, lambda _: self._final_state(id_), timeout)

    async def _final_state(self, flow_id: UUID) -> FlowState | None:
        flow = await self._context.call(read_flow_state, flow_id)
        return None if flow.ended_at is None else flow.state

    def _new_id(self, id: object) -> UUID:
        return self._context.ids.mint() if id is None else parse_new_id(id)

    def _new_members(self, flow_id: UUID, specs: Sequence[MemberSpec]) -> tuple[NewMember, ...]:
        namespace = self._context.namespace
        return tuple(NewMember(derive_id(flow_id, spec.name), spec, spec.fingerprint(namespace)) for spec in specs)

    async def _submit(self, request: NewFlow) -> FlowCreated | FlowDuplicate:
        try:
            outcome = await self._context.call(SUBMIT_FLOW, request)
        except Unavailable as error:
            raise with_ids(error, id=request.id) from error
        self._context.due_at(None)
        if isinstance(outcome, FlowDuplicate) and not request.is_given:
            # This call minted the id, so an earlier try of this call has stored the flow.
            return FlowCreated(outcome.flow_id, outcome.members)
        return outcome


def _check_revision(value: object) -> int | None:
    return None if value is None else validation.integer(value, "expected_revision", 0, 2**62)


def _member_id(flow_id: UUID, value: object, field: str) -> UUID:
    if isinstance(value, UUID):
        return value
    name = value.name if isinstance(value, Member) else validation.name(value, field)
    return upstream_of(flow_id, name)
