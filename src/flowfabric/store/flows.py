"""Flows, edges, edge groups and members."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from flowfabric.core.executions.records import CancelRequest, Execution
from flowfabric.core.executions.states import LIVE, State
from flowfabric.core.flows.graph import EdgeKind, Join, JoinKind, Siblings
from flowfabric.core.flows.records import (
    FAILURES,
    CancelPolicy,
    EdgeGroup,
    FlowCancel,
    FlowRecord,
    MemberFacts,
    StoredEdge,
)
from flowfabric.core.flows.resolution import EdgeContext
from flowfabric.core.waits.records import Waitpoint
from flowfabric.store.records import NO_CLOSING, BadEnd, Closing, MemberTermination, Release
from flowfabric.store.rows import (
    cancel_columns,
    parameters_of,
    parse_tags,
    picker,
    row_reader,
    to_datetime,
    to_execution,
    to_json,
    to_uuid,
)
from flowfabric.store.session import AggregateStore, Row
from flowfabric.store.waits import closing_statements, to_waitpoint

_BAD_ENDS = [State.FAILED, State.EXPIRED, State.CANCELLED]


class EdgeStore(AggregateStore):
    """Edges and edge groups."""

    async def open_from(self, ids: Sequence[UUID]) -> list[EdgeContext]:
        """Return the open edges from executions, each with its group and downstream member."""
        return _to_edge_contexts(await self._session.fetch("edges_from", ids=list(ids)))

    async def open_in(self, flow_ids: Sequence[UUID]) -> list[EdgeContext]:
        """Return all open edges of flows."""
        return _to_edge_contexts(await self._session.fetch("edges_within", ids=list(flow_ids)))

    async def open_into(self, ids: Sequence[UUID]) -> list[tuple[StoredEdge, MemberFacts]]:
        """Return the open edges into members, each with its upstream member."""
        rows = await self._session.fetch("open_edges_into", ids=list(ids))
        return [(_to_edge(row), _to_member(row)) for row in rows]

    async def into(self, ids: Sequence[UUID], seq: int = 0) -> list[tuple[StoredEdge, MemberFacts]]:
        """Return the edges into each member that belong to its group number `seq`, each with its upstream member."""
        rows = await self._session.fetch("edges_into", ids=list(ids), seq=seq)
        return [(_to_edge(row), _to_member(row)) for row in rows]

    async def all_from(self, ids: Sequence[UUID]) -> list[EdgeContext]:
        """Return the edges from members to their downstream members, in any state, each with its group and member."""
        return _to_edge_contexts(await self._session.fetch("all_edges_from", ids=list(ids)))

    async def all_within(self, flow_id: UUID) -> list[EdgeContext]:
        """Return all edges of a flow that lead to downstream members, in any state."""
        return _to_edge_contexts(await self._session.fetch("all_edges_within", flow_id=flow_id))

    async def given_up_for(self, ids: Sequence[UUID]) -> list[tuple[StoredEdge, MemberFacts]]:
        """Return the upstream members that were cancelled because the groups of these members became impossible."""
        rows = await self._session.fetch("given_up_for", ids=list(ids))
        return [(_to_edge(row), _to_member(row)) for row in rows]

    async def out_of(self, ids: Sequence[UUID]) -> list[StoredEdge]:
        """Return all edges from executions."""
        return [_to_edge(row) for row in await self._session.fetch("edges_out_of", ids=list(ids))]

    async def between(self, upstream_id: UUID, downstream_id: UUID) -> StoredEdge | None:
        """Return the edge between two members."""
        rows = await self._session.fetch("edge_between", upstream_id=upstream_id, downstream_id=downstream_id)
        return _to_edge(rows[0]) if rows else None

    async def reaches(self, flow_id: UUID, start: UUID, end: UUID) -> bool:
        """Return True if a path of edges leads from member `start` to member `end`."""
        return bool(await self._session.fetch("reaches", flow_id=flow_id, start=start, end=end))

    async def add(self, edges: Sequence[StoredEdge]) -> None:
        """Store new edges."""
        await self._session.fetch_batch("add_edges", [_edge_parameters(edge) for edge in edges])

    async def put(self, edges: Sequence[StoredEdge]) -> None:
        """Write the states of edges."""
        await self._session.fetch_batch("put_edges", [*map(_edge_change_parameters, edges)])

    async def put_groups(self, groups: Sequence[EdgeGroup]) -> None:
        """Insert new groups, and overwrite existing groups."""
        await self._session.fetch_batch("put_groups", [_group_parameters(group) for group in groups])

    async def groups_of(self, ids: Sequence[UUID]) -> list[EdgeGroup]:
        """Return all groups of members."""
        return [_to_group(row) for row in await self._session.fetch("groups_of", ids=list(ids))]

    async def sweeping_groups(self, flow_ids: Sequence[UUID]) -> list[EdgeGroup]:
        """Return decided groups that still have siblings to cancel."""
        return [_to_group(row) for row in await self._session.fetch("sweeping_groups", ids=list(flow_ids))]

    async def of_flow(self, flow_id: UUID, limit: int) -> tuple[list[StoredEdge], list[EdgeGroup]]:
        """Return the edges and groups of a flow."""
        edges = await self._session.fetch("list_edges", flow_id=flow_id, limit=limit)
        groups = await self._session.fetch("list_groups", flow_id=flow_id, limit=limit)
        return [_to_edge(row) for row in edges], [_to_group(row) for row in groups]


class MemberStore(AggregateStore):
    """Members of flows."""

    async def facts(self, ids: Sequence[UUID]) -> dict[UUID, MemberFacts]:
        """Return facts about executions without locking them. They stay true while the caller has locked their flow."""
        rows = await self._session.fetch("get_members", ids=list(ids))
        return {member.id: member for member in map(_to_member, rows)}

    async def lock(self, ids: Sequence[UUID]) -> None:
        """Lock members in id order. Wait for rows that other transactions have locked."""
        await self._session.fetch("lock_members", ids=list(ids))

    async def release(self, releases: Sequence[Release], now: datetime) -> None:
        """Unblock members, and append one event for each."""
        for row in await self._session.fetch_batch("release_members", [*map(_release_parameters, releases)], now=now):
            self._hints.namespaces.add(row["namespace"])
            if row["state"] == State.WAITING:
                self._hints.note_work(row["namespace"], row["lane"])
        for release in releases:
            if release.ready_at is not None:
                self._hints.note_due(release.ready_at)

    async def end(self, terminations: Sequence[MemberTermination], now: datetime) -> None:
        """Skip or cancel members, end their leases and attempts, and append one event for each member."""
        # Members that end for the same reason share one `details` object, which is encoded only once.
        shared = {id(termination.details): termination.details for termination in terminations}
        documents = {key: to_json(details) for key, details in shared.items()}
        parameters = [
            _termination_parameters(termination) | {"details": documents[id(termination.details)]}
            for termination in terminations
        ]
        for row in await self._session.fetch_batch("end_members", parameters, now=now):
            self._hints.note_ended(row["namespace"], [to_uuid(row["id"])])
            if row["instance"] is not None:
                self._hints.instances.add(row["instance"])

    async def page(self, flow_id: UUID, after: UUID, limit: int) -> list[Execution]:
        """Return members with an id above `after`, in order."""
        rows = await self._session.fetch("members_page", flow_id=flow_id, after=after, limit=limit)
        return [to_execution(row) for row in rows]

    async def live(self, flow_id: UUID, *, only_unstarted: bool, limit: int) -> list[UUID]:
        """Return the ids of members that have not ended, in order. With `only_unstarted`, skip started members."""
        rows = await self._session.fetch(
            "due_members", flow_id=flow_id, states=sorted(LIVE), only_unstarted=only_unstarted, limit=limit
        )
        return [to_uuid(row["id"]) for row in rows]

    async def request_cancel(self, ids: Sequence[UUID], request: CancelRequest) -> None:
        """Request that members are cancelled when `request` is due."""
        await self._session.fetch("request_cancel", ids=list(ids), **cancel_columns(request))
        self._hints.note_due(request.due_at)

    async def child_waitpoints(self, child_ids: Sequence[UUID]) -> list[Waitpoint]:
        """Return the open waitpoints that wait for these executions to end."""
        return [to_waitpoint(row) for row in await self._session.fetch("child_waitpoints", child_ids=list(child_ids))]

    async def children_of(self, ids: Collection[UUID]) -> list[MemberFacts]:
        """Return the children of executions."""
        return [_to_member(row) for row in await self._session.fetch("children_of", ids=list(ids))]


class FlowStore(AggregateStore):
    """Flow rows."""

    async def add(self, flows: Sequence[FlowRecord]) -> set[UUID]:
        """Insert the flows whose ids do not exist yet, and return the inserted ids."""
        parameters = [_new_flow_parameters(flow) | {"tags": to_json(flow.tags)} for flow in flows]
        return {to_uuid(row["id"]) for row in await self._session.fetch_batch("add_flows", parameters)}

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, FlowRecord]:
        """Return the flows with these ids that exist in the namespace; None means any namespace."""
        return _flows_by_id(await self._session.fetch("get_flows", ids=list(ids), namespace=namespace))

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, FlowRecord]:
        """Lock flows in id order until the transaction ends, and return them. Wait for rows that are locked."""
        return _flows_by_id(await self._session.fetch("lock_flows", ids=list(ids), namespace=namespace))

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, FlowRecord]:
        """Lock flows of any namespace and return them. Skip flows that other transactions have locked."""
        return _flows_by_id(await self._session.fetch("lock_free_flows", ids=list(ids)))

    async def lock_of(self, execution_ids: Sequence[UUID], *, wait: bool) -> dict[UUID, FlowRecord]:
        """Lock and return the flow of each execution that has one. Without `wait`, skip locked flows."""
        rows = await self._session.fetch("lock_flows_of" if wait else "lock_free_flows_of", ids=list(execution_ids))
        return {to_uuid(row["execution_id"]): _to_flow(row) for row in rows}

    async def put(self, flows: Sequence[FlowRecord]) -> None:
        """Overwrite the rows of locked flows."""
        await self._session.fetch_batch("put_flows", [_flow_parameters(flow) for flow in flows])
        self._note_sweeps(flows)

    async def set_tags(self, id_: UUID, tags: Mapping[str, str], now: datetime) -> None:
        """Replace the tags of a locked flow."""
        await self._session.fetch("set_flow_tags", id=id_, tags=to_json(tags), now=now)

    async def settle(
        self,
        edges: Sequence[StoredEdge],
        groups: Sequence[EdgeGroup],
        flows: Sequence[FlowRecord],
        now: datetime,
        closing: Closing = NO_CLOSING,
    ) -> None:
        """Write everything that changes in flows when members end, in one round trip.

        Write the states of edges, the counts of groups and flows, and which flows ended, and close waits. Other columns
        of groups and flows must be unchanged.
        """
        await self._session.run_batches(
            ("put_edges", [*map(_edge_change_parameters, edges)]),
            ("change_groups", [*map(_group_change_parameters, groups)]),
            ("count_ends", [*map(_count_parameters, flows)]),
            beside=closing_statements(closing),
            now=now,
        )
        self._note_sweeps(flows)

    async def page(self, namespace: str, before: UUID, limit: int, *, only_live: bool) -> list[FlowRecord]:
        """Return flows with an id below `before`, newest first. With `only_live`, skip finished flows."""
        statement = "list_live_flows" if only_live else "list_flows"
        rows = await self._session.fetch(statement, namespace=namespace, before=before, limit=limit)
        return [_to_flow(row) for row in rows]

    async def counts(self, ids: Sequence[UUID]) -> dict[UUID, dict[State, int]]:
        """Count the members of each flow by state."""
        counts: dict[UUID, dict[State, int]] = {}
        for row in await self._session.fetch("count_members", ids=list(ids)):
            counts.setdefault(to_uuid(row["flow_id"]), {})[State(row["state"])] = int(row["count"])
        return counts

    async def bad_ends(self, flow_id: UUID) -> list[BadEnd]:
        """Return the members that failed, expired or were cancelled."""
        rows = await self._session.fetch("bad_ends", flow_id=flow_id, states=_BAD_ENDS)
        return [
            BadEnd(
                State(row["state"]),
                row["cancelled_by"],
                bool(row["taken_up"] or row["awaited"] or row["submitted_again"]),
            )
            for row in rows
        ]

    async def failed_members(self, flow_id: UUID, ended_until: datetime, after: UUID, limit: int) -> list[UUID]:
        """Return the members with an id above `after` that failed or expired by then, in order."""
        rows = await self._session.fetch(
            "failed_members",
            flow_id=flow_id,
            states=sorted(FAILURES),
            settled_states=[State.COMPLETED, State.CANCELLED],
            ended_until=ended_until,
            after=after,
            limit=limit,
        )
        return [to_uuid(row["id"]) for row in rows]

    async def left_behind(self, flow_id: UUID, limit: int) -> list[EdgeGroup]:
        """Return the groups of members that are still skipped because of a failure that a replay repaired."""
        return [_to_group(row) for row in await self._session.fetch("left_behind", flow_id=flow_id, limit=limit)]

    async def purge(self, ids: Sequence[UUID]) -> None:
        """Remove flows whose members are gone, with their edges and groups."""
        for statement in ("delete_edges", "delete_groups", "delete_flows"):
            await self._session.fetch(statement, ids=list(ids))

    def _note_sweeps(self, flows: Sequence[FlowRecord]) -> None:
        for flow in flows:
            if flow.sweep_at is not None:
                self._hints.note_due(flow.sweep_at)


def _flows_by_id(rows: Sequence[Row]) -> dict[UUID, FlowRecord]:
    return {flow.id: flow for flow in map(_to_flow, rows)}


def _to_cancel(row: Row) -> FlowCancel | None:
    if not row["cancel_policy"]:
        return None
    return FlowCancel(
        policy=CancelPolicy(row["cancel_policy"]),
        reason=row["cancel_reason"],
        source=row["cancel_source"],
        principal=row["cancel_principal"],
        at=to_datetime(row["cancelled_at"]),
    )


_to_flow = row_reader(FlowRecord, tags=lambda row: parse_tags(row["tags"]), cancel=_to_cancel)
_count_parameters = picker("id", "sealed", "open_members", "ended_badly", "finished", "sweep_at")
_flow_change_parameters = picker(
    "id",
    "sealed",
    "revision",
    "open_members",
    "ended_badly",
    "changed_at",
    "ended_at",
    "finished",
    "sweep_at",
    "was_replayed",
)
_new_flow_parameters = parameters_of(
    FlowRecord, without=["tags", "ended_at", "finished", "cancel", "sweep_at", "purge_at", "was_replayed"]
)


def _flow_parameters(flow: FlowRecord) -> dict[str, object]:
    cancel = flow.cancel
    return _flow_change_parameters(flow) | {
        "cancel_policy": cancel and cancel.policy,
        "cancel_reason": cancel and cancel.reason,
        "cancel_source": cancel and cancel.source,
        "cancel_principal": cancel and cancel.principal,
        "cancelled_at": cancel and cancel.at,
    }


_to_edge = row_reader(StoredEdge)
_new_edge_parameters = parameters_of(StoredEdge)
_edge_change_parameters = picker("upstream_id", "downstream_id", "seq", "state", "resolved_at")


def _edge_parameters(edge: StoredEdge) -> dict[str, object]:
    or_skip = edge.kind is EdgeKind.ON_FAILURE_OR_SKIP
    kind = EdgeKind.ON_FAILURE if or_skip else edge.kind
    return _new_edge_parameters(edge) | {"kind": kind, "or_skip": or_skip}


@lru_cache(maxsize=1024)
def _to_join(kind: str, k: int | None, siblings: str) -> Join:
    return Join(JoinKind(kind), k, Siblings(siblings))


_to_group = row_reader(
    EdgeGroup, join=lambda row: _to_join(row["join_kind"], row["k"], row["siblings"]), state="group_state"
)
_new_group_parameters = parameters_of(EdgeGroup, without=["join"])
_group_change_parameters = picker("downstream_id", "seq", "state", "draft", "sweeping", "satisfied", "impossible")


def _group_parameters(group: EdgeGroup) -> dict[str, object]:
    join: dict[str, Any] = {"join_kind": group.join.kind, "k": group.join.k, "siblings": group.join.siblings}
    return _new_group_parameters(group) | join


_release_parameters = parameters_of(Release)
_termination_parameters = parameters_of(MemberTermination, without=["details"])
_to_member = row_reader(
    MemberFacts,
    id="member_id",
    flow_id="member_flow_id",
    state="member_state",
    started="started_at",
    name="member_name",
    failure_category="member_failure_category",
)


def _to_edge_contexts(rows: Sequence[Row]) -> list[EdgeContext]:
    """Return open edges with their groups and downstream members. Edges of one group share the same two objects."""
    ends: dict[tuple[UUID, int], tuple[EdgeGroup, MemberFacts]] = {}
    contexts = []
    for row in rows:
        edge = _to_edge(row)
        end = ends.get(edge.group_key) or ends.setdefault(edge.group_key, (_to_group(row), _to_member(row)))
        contexts.append(EdgeContext(edge, *end))
    return contexts
