"""`engine.flows`: graphs of executions, submitted whole or grown while they run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest, Unavailable
from flowfabric.core.flow_outcomes import (
    CancelScheduled,
    EdgeAdded,
    FlowAlreadyCancelled,
    FlowCancelled,
    FlowCreated,
    FlowDescription,
    FlowDuplicate,
    FlowPage,
    Input,
    MemberAdded,
    MemberDuplicate,
    Sealed,
)
from flowfabric.core.flows import CancelPolicy, FlowState
from flowfabric.core.graph import Drawn, Edge, EdgeKind, Graph, Join, Member, draw
from flowfabric.core.ids import derived_id, parse_id, parse_new_id
from flowfabric.core.policy import DEFAULT_POLICY, Policy
from flowfabric.core.requests import choice
from flowfabric.core.views import Page
from flowfabric.engine.cancelling import cancel_in_batches
from flowfabric.engine.context import Context, command
from flowfabric.engine.ending import until_ended
from flowfabric.engine.flow_pages import flows_page, members_page
from flowfabric.engine.routes import route_ids
from flowfabric.ops.cancel_flow import FlowCancelRequest
from flowfabric.ops.flow_reading import describe_flow, flow_state_of, inputs
from flowfabric.ops.grow_flow import NewEdge, add_edge, add_to_flow, seal
from flowfabric.ops.submit_flow import SUBMIT_FLOW, NewFlow, NewMember, upstream_of

_NO_TAGS: Mapping[str, str] = {}


class Flows:
    """Submits, grows, cancels and shows flows."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def submit(
        self, graph: Graph, *, id: UUID | str | None = None, seal: bool = True
    ) -> FlowCreated | FlowDuplicate:
        """Stores a flow with all of its members and edges, at once or not at all.

        Give an `id` to make repeating it after a lost reply harmless: the same graph answers `FlowDuplicate`. Unless
        it stays open (`seal=False`), nothing more can be added, no member is a draft, and it finishes by itself.
        """
        if not isinstance(graph, Graph):
            raise InvalidRequest("invalid_type", f"graph must be a Graph, not {type(graph).__name__}", field="graph")
        found, sealed = self._new_id(id), limits.truth(seal, "seal")
        members = await self._new_members(found, graph.drawn(sealed=sealed))
        fingerprints = {item.drawn.name: item.fingerprint for item in members}
        digest = graph.digest(self._context.namespace, fingerprints, sealed=sealed)
        request = NewFlow(
            id=found, name=graph.name, tags=dict(graph.tags), digest=digest, seal=sealed, is_given=id is not None,
            members=members,
        )  # fmt: skip
        return await self._submit(request)

    async def create(
        self, name: str, *, id: UUID | str | None = None, tags: Mapping[str, str] = _NO_TAGS
    ) -> FlowCreated | FlowDuplicate:
        """Stores an empty flow that stays open until it is sealed."""
        graph = Graph(name, tags)
        digest = graph.digest(self._context.namespace, sealed=False)
        request = NewFlow(
            id=self._new_id(id), name=graph.name, tags=dict(graph.tags), digest=digest, seal=False,
            is_given=id is not None,
        )  # fmt: skip
        return await self._submit(request)

    async def add(
        self, flow_id: UUID | str, name: str, kind: str, payload: bytes = b"", *,
        after: Sequence[Member | Edge | str] = (), join: Join | None = None, draft: bool = False,
        expected_revision: int | None = None, encoding: str = "json", lane: str = "default",
        priority: int = 0, requires: Collection[str] = (), policy: Policy = DEFAULT_POLICY,
        tags: Mapping[str, str] = _NO_TAGS, ready_at: datetime | None = None, delay: limits.Duration | None = None,
        deadline: datetime | None = None, signals: Sequence[str] = (),
    ) -> MemberAdded | MemberDuplicate:  # fmt: skip
        """Adds a member with its edges to an open flow. It may start when they let it; a draft, when it is sealed.

        With the revision of the graph that you saw, it is refused (`stale_revision`) if somebody else changed it.
        """
        found, expected = parse_id(flow_id, "flow_id"), _revision(expected_revision)
        drawn = draw(
            name, kind, payload, after=after, join=join, draft=draft, encoding=encoding, lane=lane,
            priority=priority, requires=requires, policy=policy, tags=tags, ready_at=ready_at, delay=delay,
            deadline=deadline, signals=signals,
        )  # fmt: skip
        [member] = await self._new_members(found, [drawn])
        body = partial(add_to_flow, namespace=self._context.namespace, flow_id=found, member=member, expected=expected)
        answer = await self._context.store.run(body)
        self._context.due_at(None)
        return answer

    async def add_edge(
        self, flow_id: UUID | str, upstream: Member | UUID | str, downstream: Member | UUID | str, *,
        kind: EdgeKind | str = EdgeKind.ON_SUCCESS, input: str | None = None, expected_revision: int | None = None,
    ) -> EdgeAdded:  # fmt: skip
        """Adds an edge between two members, given by name or id; the downstream must not have started."""
        found, expected = parse_id(flow_id, "flow_id"), _revision(expected_revision)
        edge = NewEdge(
            upstream_id=_member_id(found, upstream, "upstream"),
            downstream_id=_member_id(found, downstream, "downstream"), kind=choice(EdgeKind, kind, "kind"),
            input=None if input is None else limits.name(input, "input"),
        )  # fmt: skip
        body = partial(add_edge, namespace=self._context.namespace, flow_id=found, new=edge, expected=expected)
        return await self._context.store.run(body)

    async def seal(
        self, flow_id: UUID | str, member: Member | UUID | str | None = None, *, expected_revision: int | None = None
    ) -> Sealed:
        """Lets a draft start when its edges let it; without a member, all of them, and ends the growth of the flow."""
        found, expected = parse_id(flow_id, "flow_id"), _revision(expected_revision)
        which = None if member is None else _member_id(found, member, "member")
        body = partial(seal, namespace=self._context.namespace, flow_id=found, member_id=which, expected=expected)
        answer = await self._context.store.run(body)
        self._context.due_at(None)
        return answer

    async def cancel(
        self, flow_id: UUID | str, reason: str = "", *, policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
        wait: limits.Duration | None = None, source: str = "operator_override", principal: str = "operator",
    ) -> FlowCancelled | CancelScheduled | FlowAlreadyCancelled:  # fmt: skip
        """Cancels a flow: all members that have not ended, only those that have not started, or only the flow itself.

        Up to 1,000 are ended at once; the rest by the reconcilers, or, with `wait`, here within that time.
        """
        found = parse_id(flow_id, "flow_id")
        request = FlowCancelRequest(
            policy=choice(CancelPolicy, policy, "policy"), source=limits.name(source, "source"),
            command=command(principal, reason),
        )  # fmt: skip
        limit = None if wait is None else limits.duration(wait, "wait").total_seconds()
        return await cancel_in_batches(self._context, found, request, limit)

    async def describe(self, flow_id: UUID | str) -> FlowDescription:
        """The flow with its graph: every edge and what became of it, every group with its join and counters."""
        found = parse_id(flow_id, "flow_id")
        return await self._context.store.read(lambda tx: describe_flow(tx, self._context.namespace, found))

    async def members(self, flow_id: UUID | str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """One page of the flow's members, children included."""
        return await members_page(self._context, parse_id(flow_id, "flow_id"), limit, cursor)

    async def list(
        self, *, state: FlowState | str | None = None, name: str | None = None, tags: Mapping[str, str] | None = None,
        created_from: datetime | None = None, created_until: datetime | None = None, limit: int = 100,
        cursor: str | None = None,
    ) -> FlowPage:  # fmt: skip
        """One page of flows that match all filters, newest id first; pass `next_cursor` on to get the next."""
        filters: dict[str, object] = {"state": state, "name": name, "tags": tags}
        filters |= {"created_from": created_from, "created_until": created_until}
        return await flows_page(self._context, filters, limit, cursor)

    async def inputs(self, execution_id: UUID | str) -> dict[str, Input]:
        """What the upstreams of a member left for it, by the names of its inputs."""
        found = parse_id(execution_id, "execution_id")
        return await self._context.read(inputs, found)

    async def wait(self, flow_id: UUID | str, timeout: limits.Duration | None = None) -> FlowState | None:  # noqa: ASYNC109
        """Waits until all members of the sealed flow have ended; None if the timeout passes first."""
        found = parse_id(flow_id, "flow_id")
        return await until_ended(self._context.wakeups, found, lambda _: self._end(found), timeout)

    async def _end(self, flow_id: UUID) -> FlowState | None:
        look = partial(flow_state_of, namespace=self._context.namespace, flow_id=flow_id)
        flow = await self._context.store.read(look)
        return None if flow.ended_at is None else flow.state

    def _new_id(self, id: object) -> UUID:
        return self._context.ids.mint() if id is None else parse_new_id(id)

    async def _new_members(self, flow_id: UUID, drawn: Sequence[Drawn]) -> tuple[NewMember, ...]:
        routes = await route_ids(self._context, [item.submission for item in drawn])
        namespace = self._context.namespace
        return tuple(
            NewMember(derived_id(flow_id, item.name), route, item, item.fingerprint(namespace))
            for item, route in zip(drawn, routes, strict=True)
        )

    async def _submit(self, request: NewFlow) -> FlowCreated | FlowDuplicate:
        try:
            answer = await self._context.one(SUBMIT_FLOW, request)
        except Unavailable as error:
            raise Unavailable(error.code, error.message, **{**error.fields, "id": request.id}) from error
        self._context.due_at(None)
        return answer


def _revision(value: object) -> int | None:
    return None if value is None else limits.whole(value, "expected_revision", 0, 2**62)


def _member_id(flow_id: UUID, value: object, field: str) -> UUID:
    if isinstance(value, UUID):
        return value
    name = value.name if isinstance(value, Member) else limits.name(value, field)
    return upstream_of(flow_id, name)
