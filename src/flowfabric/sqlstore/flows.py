"""Flows, edges, groups and members in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from flowfabric.core.flows import (
    CancelPolicy,
    EdgeGroup,
    EdgeState,
    Flow,
    FlowCancel,
    FlowState,
    GroupState,
    MemberFacts,
    StoredEdge,
)
from flowfabric.core.graph import EdgeKind, Join, JoinKind, Siblings
from flowfabric.core.membership import Surrounding
from flowfabric.core.records import CancelRequest, Execution
from flowfabric.core.states import LIVE, State
from flowfabric.core.waits import Waitpoint
from flowfabric.sqlstore.rows import REASONS, STATES, cancel_columns, execution, identity, picking, tags, to_json, when
from flowfabric.sqlstore.session import Row, Session
from flowfabric.sqlstore.waiting import closings, waitpoint_of
from flowfabric.store.flows import NOTHING_OPEN, BadEnd, Closing, Ending, Release
from flowfabric.store.news import News

_EDGE_STATES = {item.value: item for item in EdgeState}
_EDGE_KINDS = {item.value: item for item in EdgeKind}
_GROUP_STATES = {item.value: item for item in GroupState}
_BAD_ENDS = [State.FAILED, State.EXPIRED, State.CANCELLED]


class SqlEdges:
    """Edges and groups."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def leading_from(self, ids: Sequence[UUID]) -> list[Surrounding]:
        return _surroundings(await self._session.fetch("edges_from", ids=list(ids)))

    async def within(self, flow_ids: Sequence[UUID]) -> list[Surrounding]:
        return _surroundings(await self._session.fetch("edges_within", ids=list(flow_ids)))

    async def open_into(self, ids: Sequence[UUID]) -> list[tuple[StoredEdge, MemberFacts]]:
        found = await self._session.fetch("open_edges_into", ids=list(ids))
        return [(_edge(row), _member(row)) for row in found]

    async def into(self, ids: Sequence[UUID], seq: int = 0) -> list[tuple[StoredEdge, MemberFacts]]:
        found = await self._session.fetch("edges_into", ids=list(ids), seq=seq)
        return [(_edge(row), _member(row)) for row in found]

    async def out_of(self, ids: Sequence[UUID]) -> list[StoredEdge]:
        return [_edge(row) for row in await self._session.fetch("edges_out_of", ids=list(ids))]

    async def between(self, upstream_id: UUID, downstream_id: UUID) -> StoredEdge | None:
        found = await self._session.fetch("edge_between", upstream_id=upstream_id, downstream_id=downstream_id)
        return _edge(found[0]) if found else None

    async def reaches(self, flow_id: UUID, start: UUID, end: UUID) -> bool:
        return bool(await self._session.fetch("reaches", flow_id=flow_id, start=start, end=end))

    async def add(self, edges: Sequence[StoredEdge]) -> None:
        await self._session.fetch_batch("add_edges", [_edge_parameters(edge) for edge in edges])

    async def put(self, edges: Sequence[StoredEdge]) -> None:
        await self._session.fetch_batch("put_edges", [*map(_edge_change, edges)])

    async def put_groups(self, groups: Sequence[EdgeGroup]) -> None:
        await self._session.fetch_batch("put_groups", [_group_parameters(group) for group in groups])

    async def groups_of(self, ids: Sequence[UUID]) -> list[EdgeGroup]:
        return [_group(row) for row in await self._session.fetch("groups_of", ids=list(ids))]

    async def sweeping(self, flow_ids: Sequence[UUID]) -> list[EdgeGroup]:
        return [_group(row) for row in await self._session.fetch("sweeping_groups", ids=list(flow_ids))]

    async def of_flow(self, flow_id: UUID, limit: int) -> tuple[list[StoredEdge], list[EdgeGroup]]:
        edges = await self._session.fetch("list_edges", flow_id=flow_id, limit=limit)
        groups = await self._session.fetch("list_groups", flow_id=flow_id, limit=limit)
        return [_edge(row) for row in edges], [_group(row) for row in groups]


class SqlMembers:
    """Members of flows."""

    def __init__(self, session: Session, news: News) -> None:
        self._session = session
        self._news = news

    async def facts(self, ids: Sequence[UUID]) -> dict[UUID, MemberFacts]:
        found = await self._session.fetch("get_members", ids=list(ids))
        return {item.id: item for item in map(_member, found)}

    async def lock(self, ids: Sequence[UUID]) -> None:
        await self._session.fetch("lock_members", ids=list(ids))

    async def release(self, items: Sequence[Release], now: datetime) -> None:
        for row in await self._session.fetch_batch("release_members", [*map(_release, items)], now=now):
            self._news.namespaces.add(row["namespace"])
            if row["state"] == State.WAITING:
                self._news.note_work(row["namespace"], row["lane"])
        for item in items:
            if item.ready_at is not None:
                self._news.note_due(item.ready_at)

    async def end(self, items: Sequence[Ending], now: datetime) -> None:
        # Those that end for one reason share their details.
        shared = {id(item.details): item.details for item in items}
        documents = {key: to_json(details) for key, details in shared.items()}
        values = [_ending(item) | {"details": documents[id(item.details)]} for item in items]
        for row in await self._session.fetch_batch("end_members", values, now=now):
            self._news.note_ended(row["namespace"], [identity(row["id"])])

    async def page(self, flow_id: UUID, after: UUID, limit: int) -> list[Execution]:
        found = await self._session.fetch("members_page", flow_id=flow_id, after=after, limit=limit)
        return [execution(row) for row in found]

    async def live(self, flow_id: UUID, *, only_unstarted: bool, limit: int) -> list[UUID]:
        found = await self._session.fetch(
            "due_members", flow_id=flow_id, states=sorted(LIVE), only_unstarted=only_unstarted, limit=limit
        )
        return [identity(row["id"]) for row in found]

    async def request_cancel(self, ids: Sequence[UUID], request: CancelRequest) -> None:
        await self._session.fetch("request_cancel", ids=list(ids), **cancel_columns(request))

    async def awaited(self, child_ids: Sequence[UUID]) -> list[Waitpoint]:
        return [waitpoint_of(row) for row in await self._session.fetch("child_waitpoints", child_ids=list(child_ids))]

    async def children_of(self, ids: Collection[UUID]) -> list[MemberFacts]:
        return [_member(row) for row in await self._session.fetch("children_of", ids=list(ids))]


class SqlFlows:
    """Rows of flows, and what belongs to them."""

    def __init__(self, session: Session, news: News) -> None:
        self._session = session
        self._news = news
        self.edges = SqlEdges(session)
        self.members = SqlMembers(session, news)

    async def add(self, flows: Sequence[Flow]) -> set[UUID]:
        items = [_new_flow(flow) | {"tags": to_json(flow.tags)} for flow in flows]
        return {identity(row["id"]) for row in await self._session.fetch_batch("add_flows", items)}

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        return _flows(await self._session.fetch("get_flows", ids=list(ids), namespace=namespace))

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        return _flows(await self._session.fetch("lock_flows", ids=list(ids), namespace=namespace))

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        return _flows(await self._session.fetch("lock_free_flows", ids=list(ids)))

    async def lock_of(self, execution_ids: Sequence[UUID], *, wait: bool) -> dict[UUID, Flow]:
        found = await self._session.fetch("lock_flows_of" if wait else "lock_free_flows_of", ids=list(execution_ids))
        return {identity(row["execution_id"]): _flow(row) for row in found}

    async def put(self, flows: Sequence[Flow]) -> None:
        await self._session.fetch_batch("put_flows", [_flow_parameters(flow) for flow in flows])
        self._note_sweeps(flows)

    async def settle(
        self, edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], flows: Sequence[Flow], now: datetime,
        closing: Closing = NOTHING_OPEN,
    ) -> None:  # fmt: skip
        await self._session.run_batches(
            ("put_edges", [*map(_edge_change, edges)]),
            ("change_groups", [*map(_group_change, groups)]),
            ("count_ends", [*map(_counted, flows)]),
            beside=closings(closing),
            now=now,
        )
        self._note_sweeps(flows)

    async def page(self, namespace: str, before: UUID, limit: int, *, only_live: bool) -> list[Flow]:
        statement = "list_live_flows" if only_live else "list_flows"
        found = await self._session.fetch(statement, namespace=namespace, before=before, limit=limit)
        return [_flow(row) for row in found]

    async def counts(self, ids: Sequence[UUID]) -> dict[UUID, dict[State, int]]:
        counted: dict[UUID, dict[State, int]] = {}
        for row in await self._session.fetch("count_members", ids=list(ids)):
            counted.setdefault(identity(row["flow_id"]), {})[State(row["state"])] = int(row["count"])
        return counted

    async def bad_ends(self, flow_id: UUID) -> list[BadEnd]:
        found = await self._session.fetch("bad_ends", flow_id=flow_id, states=_BAD_ENDS)
        return [
            BadEnd(State(row["state"]), row["cancelled_by"], bool(row["taken_up"] or row["awaited"])) for row in found
        ]

    async def purge(self, ids: Sequence[UUID]) -> None:
        for statement in ("delete_edges", "delete_groups", "delete_flows"):
            await self._session.fetch(statement, ids=list(ids))

    def _note_sweeps(self, flows: Sequence[Flow]) -> None:
        for flow in flows:
            if flow.sweep_at is not None:
                self._news.note_due(flow.sweep_at)


def _flows(found: Sequence[Row]) -> dict[UUID, Flow]:
    return {item.id: item for item in map(_flow, found)}


def _flow(row: Row) -> Flow:
    cancel = FlowCancel(
        policy=CancelPolicy(row["cancel_policy"]), reason=row["cancel_reason"], source=row["cancel_source"],
        principal=row["cancel_principal"], at=when(row["cancelled_at"]),
    ) if row["cancel_policy"] else None  # fmt: skip
    return Flow(
        id=identity(row["id"]), namespace=row["namespace"], name=row["name"], implicit=bool(row["implicit"]),
        tags=tags(row["tags"]), digest=row["digest"], sealed=bool(row["sealed"]), revision=row["revision"],
        open_members=row["open_members"], ended_badly=row["ended_badly"], created_at=when(row["created_at"]),
        changed_at=when(row["changed_at"]), ended_at=when(row["ended_at"]),
        finished=FlowState(row["finished"]) if row["finished"] else None, cancel=cancel,
        sweep_at=when(row["sweep_at"]), purge_at=when(row["purge_at"]),
    )  # fmt: skip


_counted = picking("id", "sealed", "open_members", "ended_badly", "finished", "sweep_at")
_flow_change = picking(
    "id", "sealed", "revision", "open_members", "ended_badly", "changed_at", "ended_at", "finished", "sweep_at"
)
_new_flow = picking(
    "id", "namespace", "name", "implicit", "digest", "sealed", "revision", "open_members", "ended_badly", "created_at",
    "changed_at",
)  # fmt: skip


def _flow_parameters(flow: Flow) -> dict[str, object]:
    cancel = flow.cancel
    return _flow_change(flow) | {
        "cancel_policy": cancel and cancel.policy,
        "cancel_reason": cancel and cancel.reason,
        "cancel_source": cancel and cancel.source,
        "cancel_principal": cancel and cancel.principal,
        "cancelled_at": cancel and cancel.at,
    }


def _edge(row: Row) -> StoredEdge:
    return StoredEdge(
        flow_id=identity(row["flow_id"]), upstream_id=identity(row["upstream_id"]),
        downstream_id=identity(row["downstream_id"]), seq=row["seq"], kind=_EDGE_KINDS[row["kind"]], input=row["input"],
        state=_EDGE_STATES[row["state"]], resolved_at=when(row["resolved_at"]),
    )  # fmt: skip


_edge_parameters = picking("upstream_id", "downstream_id", "seq", "flow_id", "kind", "input", "state", "resolved_at")
_edge_change = picking("upstream_id", "downstream_id", "seq", "state", "resolved_at")


@lru_cache(maxsize=1024)
def _join(kind: str, k: int | None, siblings: str) -> Join:
    return Join(JoinKind(kind), k, Siblings(siblings))


def _group(row: Row) -> EdgeGroup:
    return EdgeGroup(
        downstream_id=identity(row["downstream_id"]), seq=row["seq"], flow_id=identity(row["flow_id"]),
        join=_join(row["join_kind"], row["k"], row["siblings"]), n=row["n"], satisfied=row["satisfied"],
        impossible=row["impossible"], state=_GROUP_STATES[row["group_state"]],
        draft=bool(row["draft"]), sweeping=bool(row["sweeping"]),
    )  # fmt: skip


_new_group = picking("downstream_id", "seq", "flow_id", "state", "draft", "sweeping", "n", "satisfied", "impossible")
_group_change = picking("downstream_id", "seq", "state", "draft", "sweeping", "satisfied", "impossible")


def _group_parameters(group: EdgeGroup) -> dict[str, object]:
    join: dict[str, Any] = {"join_kind": group.join.kind, "k": group.join.k, "siblings": group.join.siblings}
    return _new_group(group) | join


_release = picking("id", "state", "blocking_reason", "ready_at")
_ending = picking("id", "state", "cancelled_by", "principal", "reason")


def _member(row: Row) -> MemberFacts:
    return MemberFacts(
        id=identity(row["member_id"]), flow_id=identity(row["member_flow_id"]), state=STATES[row["member_state"]],
        blocking_reason=REASONS[row["blocking_reason"]], ready_at=when(row["ready_at"]),
        parent_id=identity(row["parent_id"]), has_children=bool(row["has_children"]),
        started=row["started_at"] is not None,
    )  # fmt: skip


def _surroundings(found: Sequence[Row]) -> list[Surrounding]:
    """Open edges with what they lead to, of which the edges into one group share what is not theirs."""
    ends: dict[tuple[UUID, int], tuple[EdgeGroup, MemberFacts]] = {}
    surroundings = []
    for row in found:
        edge = _edge(row)
        end = ends.get(edge.group_key) or ends.setdefault(edge.group_key, (_group(row), _member(row)))
        surroundings.append(Surrounding(edge, *end))
    return surroundings
