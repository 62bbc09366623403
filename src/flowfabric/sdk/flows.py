"""Flows: tasks that run after one another, built from typed results before anything runs.

    flow = app.flow("etl")
    a, b = flow.add(extract, "eu"), flow.add(extract, "us")
    report = flow.add(summarise, [a.result, b.result])
    handle = await flow.submit()
    text = await handle[report]

`a.result` has the type of the value and is a reference to it. Every reference is an edge; the value is put in its place
when the member runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, cast
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.flow_outcomes import FlowDescription
from flowfabric.core.flows import CancelPolicy, FlowState
from flowfabric.core.graph import Edge, EdgeKind, Graph, Join, Siblings, all_of, any_of, quorum
from flowfabric.core.ids import derived_id
from flowfabric.sdk import effects
from flowfabric.sdk.aliases import Durable, Duration, P, R, R_co
from flowfabric.sdk.flow_inputs import drawn_inputs
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.references import Reference

if TYPE_CHECKING:
    from flowfabric.sdk import sync_client
    from flowfabric.sdk.app import App
    from flowfabric.sdk.tasks import Task

__all__ = ["Flow", "FlowHandle", "Node"]

_EDGES = {"success": EdgeKind.ON_SUCCESS, "failure": EdgeKind.ON_FAILURE, "completion": EdgeKind.ON_COMPLETION}
_DEFAULT_NAME = "flow"


class Node(Generic[R_co]):
    """A member of a flow that is being built."""

    def __init__(self, flow: Flow, name: str, task: Task[..., R_co]) -> None:
        self.flow = flow
        self.name = name
        self.task = task

    @property
    def result(self) -> R_co:
        """What the member will have answered: an argument for other members, also inside of lists and dicts."""
        return cast(R_co, Reference(self.flow, (self.name,)))

    def __repr__(self) -> str:
        return f"<node {self.name}>"


@dataclass(slots=True)
class _Drawn:
    """A member as it is drawn: its stored input, what it comes after, and how that is joined."""

    task: Task[..., Any]
    payload: bytes
    encoding: str
    join: Join
    edges: dict[str, EdgeKind] = field(default_factory=dict)


class Flow:
    """A graph of calls. Nothing is stored until it is submitted, and then all of it at once."""

    def __init__(self, app: App, name: str | None = None) -> None:
        self.app = app
        self.name = limits.name(_DEFAULT_NAME if name is None else name, "name of the flow")
        self._members: dict[str, _Drawn] = {}

    def add(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]:
        """Adds a call of the task. It runs when every member that its arguments refer to has succeeded.

        Its name is the task's, numbered if there are several, or `task.options(name=…)`.
        """
        _check_options(task)
        newest = task.newest
        name = self._new_name(newest)
        payload, encoding, references = drawn_inputs(newest, args, kwargs)
        for reference in references:
            self._check_own(reference.flow)
        edges = {upstream: EdgeKind.ON_SUCCESS for reference in references for upstream in reference.of}
        self._members[name] = _Drawn(newest, payload, encoding, _join(name, references), edges)
        return Node(self, name, newest)

    def after(
        self, node: Node[Any], *upstream: Node[Any], on: Literal["success", "failure", "completion"] = "success"
    ) -> None:
        """Lets a member run only after others have succeeded, failed or ended, without taking their results."""
        if on not in _EDGES:
            raise InvalidRequest("invalid_choice", "on must be 'success', 'failure' or 'completion'", field="on")
        drawn = self._drawn(node)
        if drawn.join != all_of():
            message = f"{node.name} has a join already (first or quorum), and a member has one; add a member between"
            raise InvalidRequest("one_join_per_member", message, member=node.name)
        for other in upstream:
            self._drawn(other)
            kind = drawn.edges.setdefault(other.name, _EDGES[on])
            if kind is not _EDGES[on]:
                message = f"{node.name} comes after {other.name} already, {kind.value}; there is one edge between two"
                raise InvalidRequest("duplicate_edge", message, member=node.name, upstream=other.name)

    def first(self, *nodes: Node[R], cancel_rest: bool = True) -> R:
        """A reference to the result of the member that succeeds first; the others are cancelled unless told."""
        return cast(R, self._joined("first", 1, nodes, cancel_rest=cancel_rest))

    def quorum(self, k: int, *nodes: Node[R], cancel_rest: bool = True) -> list[R]:
        """A reference to the results of the first `k` members that succeed, in that order."""
        needed = limits.whole(k, "k", 1, max(1, len(nodes)))
        return cast(list[R], self._joined("quorum", needed, nodes, cancel_rest=cancel_rest))

    def submit(self) -> Durable[FlowHandle]:
        """Stores all members and edges at once, or nothing."""
        if effects.is_in_task():
            return self._handled(effects.as_step(f"flow:{self.name}", self._store_in_step))
        return self._handled(self._store(effects.known_id("flow")))

    @property
    def sync(self) -> sync_client.Flow:
        """The same for plain code."""
        from flowfabric.sdk import sync_client

        return sync_client.Flow(self)

    async def _store_in_step(self) -> UUID:
        return await self._store(effects.known_id("flow"))

    async def _store(self, id_: UUID | None) -> UUID:
        engine = await self.app.engine()
        return (await engine.flows.submit(self._graph(), id=id_)).flow_id

    async def _handled(self, stored: Durable[UUID]) -> FlowHandle:
        return FlowHandle(self.app, await stored, frozenset(self._members))

    def _graph(self) -> Graph:
        graph = Graph(self.name)
        for name, drawn in self._members.items():
            item = drawn.task.submission_of(drawn.payload, drawn.encoding)
            edges = [Edge(upstream, kind) for upstream, kind in drawn.edges.items()]
            graph.add(
                name, item.kind, item.payload, after=edges, join=drawn.join, encoding=item.encoding, lane=item.lane,
                priority=item.priority, requires=item.requires, policy=item.policy, tags=item.tags,
                ready_at=item.ready_at, delay=item.delay, signals=item.signals,
            )  # fmt: skip
        return graph

    def _new_name(self, task: Task[..., Any]) -> str:
        given = task.called.name
        if given is not None:
            if given in self._members:
                raise InvalidRequest("duplicate_member", f"the flow has a member {given!r} already", member=given)
            return limits.name(given, "name")
        number = 1
        while (name := task.base if number == 1 else f"{task.base}#{number}") in self._members:
            number += 1
        return name

    def _joined(
        self, how: Literal["first", "quorum"], needed: int, nodes: Sequence[Node[Any]], *, cancel_rest: bool
    ) -> Reference:
        if not nodes:
            raise InvalidRequest("invalid_request", f"{how} needs at least one member", field="nodes")
        for node in nodes:
            self._drawn(node)
        names = tuple(dict.fromkeys(node.name for node in nodes))
        return Reference(self, names, how, needed, limits.truth(cancel_rest, "cancel_rest"))

    def _drawn(self, node: object) -> _Drawn:
        if not isinstance(node, Node):
            raise InvalidRequest("invalid_type", f"expected a node of this flow, not {type(node).__name__}")
        self._check_own(node.flow)
        return self._members[node.name]

    def _check_own(self, flow: object) -> None:
        if flow is not self:
            raise InvalidRequest("foreign_member", f"flow {self.name!r} was given a member of another flow")


class FlowHandle:
    """A flow that was submitted; `handle[node]` is the handle of a member."""

    def __init__(self, app: App, id: UUID, members: frozenset[str]) -> None:
        self.app = app
        self.id = id
        self._members = members

    def __getitem__(self, node: Node[R]) -> Handle[R]:
        if node.name not in self._members:
            raise InvalidRequest("unknown_member", f"this flow has no member {node.name!r}", member=node.name)
        return Handle(self.app, derived_id(self.id, node.name), node.task)

    def cancel(self, policy: Literal["cancel_all", "cancel_pending", "flow_only"] = "cancel_all") -> Durable[None]:
        """Cancels the flow: all members that have not ended, only those that have not started, or none of them."""
        if effects.is_in_task():
            return effects.as_step("cancel_flow", _cancel, self.app, self.id, policy)
        return _cancel(self.app, self.id, policy)

    def wait(self, timeout: Duration | None = None) -> Durable[FlowState | None]:
        """Waits until all members have ended; None if the timeout passes first. Not for the function of a task, which
        awaits members instead."""
        if effects.is_in_task():
            message = "a task waits for members of a flow, for example `await handle[node]`, not for the whole flow"
            raise InvalidRequest("flow_wait_in_task", message)
        return _wait(self.app, self.id, timeout)

    def status(self) -> Durable[FlowDescription]:
        """The flow as it is now, with its graph."""
        return _status(self.app, self.id)

    @property
    def sync(self) -> sync_client.FlowHandle:
        """The same verbs for plain code."""
        from flowfabric.sdk import sync_client

        return sync_client.FlowHandle(self)

    def __repr__(self) -> str:
        return f"<handle of flow {self.id}>"


async def _cancel(app: App, id_: UUID, policy: str) -> None:
    engine = await app.engine()
    await engine.flows.cancel(id_, policy=CancelPolicy(policy), principal="program")


async def _wait(app: App, id_: UUID, limit: Duration | None) -> FlowState | None:
    engine = await app.engine()
    return await engine.flows.wait(id_, limit)


async def _status(app: App, id_: UUID) -> FlowDescription:
    engine = await app.engine()
    return await engine.flows.describe(id_)


def _check_options(task: Task[..., Any]) -> None:
    called = task.called
    if called.key is not None or called.within is not None or called.detached:
        message = "key, within and detached are for executions by themselves; a flow stores all of its members at once"
        raise InvalidRequest("invalid_request", message, kind=task.name)


def _join(name: str, references: Sequence[Reference]) -> Join:
    """How the edges of a member are joined: all of them, or as its one `first` or `quorum` says."""
    joined = {reference for reference in references if reference.how != "result"}
    if not joined:
        return all_of()
    if len(joined) > 1 or any(reference.how == "result" for reference in references):
        message = f"{name} takes a first or quorum and other results; a member has one join, so add a member between"
        raise InvalidRequest("one_join_per_member", message, member=name)
    [reference] = joined
    siblings = Siblings.CANCEL_REMAINING if reference.cancel_rest else Siblings.LET_RUN
    if reference.how == "first":
        return any_of(siblings=siblings)
    return quorum(reference.needed, siblings=siblings)
