"""Flows: graphs of tasks, in which a task takes the results of earlier tasks. A flow is built before any task runs.

    flow = app.flow("etl")
    a, b = flow.add(extract, "eu"), flow.add(extract, "us")
    report = flow.add(summarise, [a.result, b.result])
    handle = await flow.submit()
    text = await handle[report]

`a.result` is a reference to the result of `a`, and type checkers see the type of that result. Every reference adds an
edge. The reference is replaced by the result when the member runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, cast
from uuid import UUID

from flowfabric.app.handle import Handle
from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import Submission
from flowfabric.core.flows.graph import Edge, EdgeKind, Graph, Join, Siblings, all_of, any_of, quorum
from flowfabric.core.flows.outcomes import FlowDescription
from flowfabric.core.flows.records import CancelPolicy, FlowState
from flowfabric.core.ids import derive_id, parse_new_id
from flowfabric.runtime.calls.step import as_step
from flowfabric.runtime.flow_inputs import build_inputs
from flowfabric.runtime.signals import is_in_task, step_derived_id
from flowfabric.values.aliases import Durable, Duration, P, R, R_co, awaited_as
from flowfabric.values.placeholders import ResultReference

if TYPE_CHECKING:
    from flowfabric.app import sync_client
    from flowfabric.app.app import App
    from flowfabric.app.task import Task

__all__ = ["Flow", "FlowHandle", "Node"]

_EDGES = {
    "success": EdgeKind.ON_SUCCESS,
    "failure": EdgeKind.ON_FAILURE_OR_SKIP,
    "completion": EdgeKind.ON_COMPLETION,
}
_DEFAULT_NAME = "flow"
# The fields of a submission that also apply to a member of a flow.
_MEMBER_OPTIONS = {option.name for option in fields(Submission)} - {"kind", "payload", "id", "key"}


class Node(Generic[R_co]):
    """A member of a flow that is being built."""

    def __init__(self, flow: Flow, name: str, task: Task[..., R_co]) -> None:
        self.flow = flow
        self.name = name
        self.task = task

    @property
    def result(self) -> R_co:
        """A reference to the member's result. Pass it to other members, as an argument or inside a list or dict."""
        return cast(R_co, ResultReference(self.flow, (self.name,)))

    def __repr__(self) -> str:
        return f"<node {self.name}>"


@dataclass(slots=True)
class _MemberSpec:
    """A member of a flow that is being built: its stored input, its upstream edges, and the join of these edges."""

    task: Task[..., Any]
    payload: bytes
    encoding: str
    join: Join
    edges: dict[str, EdgeKind] = field(default_factory=dict)


class Flow:
    """A graph of calls of tasks. `submit` stores the whole graph in one transaction. Before that, nothing is stored."""

    def __init__(self, app: App, name: str | None = None) -> None:
        self.app = app
        self.name = validation.name(_DEFAULT_NAME if name is None else name, "name of the flow")
        self._members: dict[str, _MemberSpec] = {}

    def add(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]:
        """Add a call of the task as a member. The member runs when all members in its arguments have succeeded.

        The member's name is the name from `task.options(name=…)`, or else the task's name. If another member already
        has the task's name, a number is appended.
        """
        _check_options(task)
        newest = task.newest
        name = self._new_name(newest)
        payload, encoding, references = build_inputs(newest, args, kwargs)
        for reference in references:
            self._check_own(reference.flow)
        edges = {upstream: EdgeKind.ON_SUCCESS for reference in references for upstream in reference.members}
        self._members[name] = _MemberSpec(newest, payload, encoding, _join(name, references), edges)
        return Node(self, name, newest)

    def after(
        self, node: Node[Any], *upstream: Node[Any], on: Literal["success", "failure", "completion"] = "success"
    ) -> None:
        """Run `node` only after all `upstream` members have ended as `on` requires, without using their results.

        "failure" also covers a member that was skipped because of a failure further upstream.
        """
        if on not in _EDGES:
            raise InvalidRequest("invalid_choice", "on must be 'success', 'failure' or 'completion'", field="on")
        member = self._find_member(node)
        if member.join != all_of():
            message = f"{node.name} already has a join (first or quorum) and cannot have another; add a member for it"
            raise InvalidRequest("one_join_per_member", message, member=node.name)
        for other in upstream:
            self._find_member(other)
            kind = member.edges.setdefault(other.name, _EDGES[on])
            if kind is not _EDGES[on]:
                message = f"{node.name} already has an edge from {other.name} ({kind.value}); keep only one"
                raise InvalidRequest("duplicate_edge", message, member=node.name, upstream=other.name)

    def first(self, *nodes: Node[R], cancel_rest: bool = True) -> R:
        """Return a reference to the result of the first of these members that succeeds.

        With `cancel_rest`, the others of these members are then cancelled.
        """
        return cast(R, self._make_reference("first", 1, nodes, cancel_rest=cancel_rest))

    def quorum(self, k: int, *nodes: Node[R], cancel_rest: bool = True) -> list[R]:
        """Return a reference to the results of the first `k` members that succeed, in the order in which they end."""
        needed = validation.integer(k, "k", 1, max(1, len(nodes)))
        return cast(list[R], self._make_reference("quorum", needed, nodes, cancel_rest=cancel_rest))

    def submit(self, *, id: UUID | str | None = None) -> Durable[FlowHandle]:
        """Store all members and edges in one transaction. If this fails, nothing is stored.

        `id` is the id of the flow. Pass the `id` that an `Unavailable` error has in its fields, so that the repeated
        call stores no second flow.
        """
        id_ = None if id is None else parse_new_id(id)
        if is_in_task():
            if id_ is not None:
                raise InvalidRequest("invalid_request", "a flow of a task has a derived id; omit id=", flow=self.name)
            return self._make_handle(as_step(f"flow:{self.name}", self._store_in_step))
        return self._submit(id_ or step_derived_id("flow"))

    @property
    def sync(self) -> sync_client.Flow:
        """The methods of this flow for plain (not async) code."""
        from flowfabric.app import sync_client

        return sync_client.Flow(self)

    async def _store_in_step(self) -> UUID:
        return await self._store(step_derived_id("flow"))

    async def _store(self, id_: UUID | None) -> UUID:
        engine = await self.app.engine()
        return (await engine.flows.submit(self._graph(), id=id_)).flow_id

    @awaited_as("Flow.submit")
    async def _submit(self, id_: UUID | None) -> FlowHandle:
        return await self._make_handle(self._store(id_))

    async def _make_handle(self, stored: Durable[UUID]) -> FlowHandle:
        return FlowHandle(self.app, await stored, frozenset(self._members))

    def _graph(self) -> Graph:
        graph = Graph(self.name)
        for name, member in self._members.items():
            submission = member.task.submission_of(member.payload, member.encoding)
            edges = [Edge(upstream, kind) for upstream, kind in member.edges.items()]
            options = {option: getattr(submission, option) for option in _MEMBER_OPTIONS}
            graph.add(name, submission.kind, submission.payload, after=edges, join=member.join, **options)
        return graph

    def _new_name(self, task: Task[..., Any]) -> str:
        option = task.call_options.name
        if option is not None:
            if option in self._members:
                raise InvalidRequest("duplicate_member", f"the flow has a member {option!r} already", member=option)
            return validation.name(option, "name")
        number = 1
        while (name := task.base if number == 1 else f"{task.base}#{number}") in self._members:
            number += 1
        return name

    def _make_reference(
        self, how: Literal["first", "quorum"], needed: int, nodes: Sequence[Node[Any]], *, cancel_rest: bool
    ) -> ResultReference:
        if not nodes:
            raise InvalidRequest("invalid_request", f"{how} needs at least one member", field="nodes")
        for node in nodes:
            self._find_member(node)
        names = tuple(dict.fromkeys(node.name for node in nodes))
        return ResultReference(self, names, how, needed, validation.boolean(cancel_rest, "cancel_rest"))

    def _find_member(self, node: object) -> _MemberSpec:
        if not isinstance(node, Node):
            raise InvalidRequest("invalid_type", f"expected a node of this flow, not {type(node).__name__}")
        self._check_own(node.flow)
        return self._members[node.name]

    def _check_own(self, flow: object) -> None:
        if flow is not self:
            raise InvalidRequest("foreign_member", f"flow {self.name!r} was given a member of another flow")


class FlowHandle:
    """A submitted flow. `handle[node]` is the handle of a member."""

    def __init__(self, app: App, id: UUID, members: frozenset[str]) -> None:
        self.app = app
        self.id = id
        self._members = members

    def __getitem__(self, node: Node[R]) -> Handle[R]:
        if node.name not in self._members:
            raise InvalidRequest("unknown_member", f"this flow has no member {node.name!r}", member=node.name)
        return Handle(self.app, derive_id(self.id, node.name), node.task)

    def cancel(self, policy: Literal["cancel_all", "cancel_pending", "flow_only"] = "cancel_all") -> Durable[None]:
        """Cancel the flow. By `policy`, also cancel all unfinished members, only the unstarted members, or none."""
        if is_in_task():
            return as_step("cancel_flow", _cancel, self.app, self.id, policy)
        return _cancel(self.app, self.id, policy)

    def replay(self, *, failed: bool) -> Durable[int]:
        """Run all failed members again, and bring back the members that were skipped because of them.

        Return how many failed members run again. `failed` must be True.
        """
        if is_in_task():
            return as_step("replay_flow", _replay, self.app, self.id, failed)
        return _replay(self.app, self.id, failed)

    def wait(self, timeout: Duration | None = None) -> Durable[FlowState | None]:
        """Wait until all members have ended.

        Return None if the timeout passes first. Inside a task this raises, because a task must await single members.
        """
        if is_in_task():
            message = "a task waits for members of a flow, for example `await handle[node]`, not for the whole flow"
            raise InvalidRequest("flow_wait_in_task", message)
        return _wait(self.app, self.id, timeout)

    def status(self) -> Durable[FlowDescription]:
        """Return the current state of the flow and its graph."""
        return _status(self.app, self.id)

    @property
    def sync(self) -> sync_client.FlowHandle:
        """The methods of this handle for plain (not async) code."""
        from flowfabric.app import sync_client

        return sync_client.FlowHandle(self)

    def __repr__(self) -> str:
        return f"<handle of flow {self.id}>"


@awaited_as("FlowHandle.cancel")
async def _cancel(app: App, id_: UUID, policy: str) -> None:
    engine = await app.engine()
    await engine.flows.cancel(id_, policy=CancelPolicy(policy), principal="program")


@awaited_as("FlowHandle.replay")
async def _replay(app: App, id_: UUID, failed: bool) -> int:
    engine = await app.engine()
    return (await engine.flows.replay(id_, failed=failed, principal="program")).replayed


@awaited_as("FlowHandle.wait")
async def _wait(app: App, id_: UUID, limit: Duration | None) -> FlowState | None:
    engine = await app.engine()
    return await engine.flows.wait(id_, limit)


@awaited_as("FlowHandle.status")
async def _status(app: App, id_: UUID) -> FlowDescription:
    engine = await app.engine()
    return await engine.flows.describe(id_)


def _check_options(task: Task[..., Any]) -> None:
    options = task.call_options
    if options.key is not None or options.id is not None or options.connection is not None or options.detached:
        message = "key, id, connection and detached do not apply to members of a flow, stored together; omit them"
        raise InvalidRequest("invalid_request", message, kind=task.name)


def _join(name: str, references: Sequence[ResultReference]) -> Join:
    """Return the join of a member. It is `all_of`, unless the member takes the result of a `first` or `quorum`."""
    joined = {reference for reference in references if reference.mode != "result"}
    if not joined:
        return all_of()
    if len(joined) > 1 or any(reference.mode == "result" for reference in references):
        message = f"{name} takes a first or quorum and other results, but has one join; add a member for one of them"
        raise InvalidRequest("one_join_per_member", message, member=name)
    [reference] = joined
    siblings = Siblings.CANCEL_REMAINING if reference.cancel_rest else Siblings.LET_RUN
    if reference.mode == "first":
        return any_of(siblings=siblings)
    return quorum(reference.needed, siblings=siblings)
