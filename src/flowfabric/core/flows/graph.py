"""The graph of a flow as its caller builds it: members by name, edges between them, and joins.

Invalid graphs are refused here: unknown and repeated names, self-edges, cycles, too many members, and a quorum that the
edges cannot reach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import Submission, digest
from flowfabric.core.fast_dataclass import put, record, replace
from flowfabric.core.policy import DEFAULT_POLICY, Policy
from flowfabric.core.waits.schemas import DeclaredSignals

_NO_TAGS: Mapping[str, str] = {}


class EdgeKind(StrEnum):
    """The outcomes of the upstream member that satisfy an edge.

    `on_failure_or_skip` is satisfied like `on_failure`, and also if the upstream was skipped because of a failure.
    """

    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"
    ON_FAILURE_OR_SKIP = "on_failure_or_skip"
    ON_COMPLETION = "on_completion"


class JoinKind(StrEnum):
    """How many of a member's edges must be satisfied."""

    ALL_OF = "all_of"
    ANY_OF = "any_of"
    QUORUM = "quorum"


class Siblings(StrEnum):
    """What happens to upstream members that have not ended when their edge group is decided."""

    LET_RUN = "let_run"
    CANCEL_REMAINING = "cancel_remaining"


@dataclass(frozen=True, slots=True)
class Join:
    """How the edges of a member are joined; made by `all_of`, `any_of` and `quorum`."""

    kind: JoinKind = JoinKind.ALL_OF
    k: int | None = None
    siblings: Siblings = Siblings.LET_RUN

    def __post_init__(self) -> None:
        put(
            self,
            kind=validation.parse_choice(JoinKind, self.kind, "join"),
            siblings=validation.parse_choice(Siblings, self.siblings, "siblings"),
        )
        is_number = isinstance(self.k, int) and not isinstance(self.k, bool) and self.k >= 1
        if self.kind is JoinKind.QUORUM and not is_number:
            message = f"k must be an integer of at least 1, not {validation.preview(self.k)}"
            raise InvalidRequest("invalid_quorum", message)
        if self.kind is not JoinKind.QUORUM and self.k is not None:
            raise InvalidRequest("invalid_quorum", f"k is for a quorum, not for {self.kind}; use quorum(k)")

    def needed(self, edges: int) -> int:
        """Return how many of `edges` edges must be satisfied."""
        if self.kind is JoinKind.ALL_OF:
            return edges
        return 1 if self.k is None else self.k


def all_of(*, siblings: Siblings | str = Siblings.LET_RUN) -> Join:
    """Return a join that fires when all edges are satisfied."""
    return Join(JoinKind.ALL_OF, None, validation.parse_choice(Siblings, siblings, "siblings"))


def any_of(*, siblings: Siblings | str = Siblings.CANCEL_REMAINING) -> Join:
    """Return a join that fires when one edge is satisfied."""
    return Join(JoinKind.ANY_OF, None, validation.parse_choice(Siblings, siblings, "siblings"))


def quorum(k: int, *, siblings: Siblings | str = Siblings.CANCEL_REMAINING) -> Join:
    """Return a join that fires when `k` edges are satisfied."""
    return Join(JoinKind.QUORUM, k, validation.parse_choice(Siblings, siblings, "siblings"))


ALL_OF = all_of()


@dataclass(frozen=True, slots=True)
class Member:
    """A reference to a member of a graph, to be passed in `after`."""

    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """An inbound edge: the upstream member, the outcomes that satisfy the edge, and the input that gets the result."""

    upstream: Member | UUID | str
    kind: EdgeKind = EdgeKind.ON_SUCCESS
    input: str | None = None

    def __post_init__(self) -> None:
        put(self, upstream=_name_of(self.upstream), kind=validation.parse_choice(EdgeKind, self.kind, "kind"))
        if self.input is not None:
            validation.name(self.input, "input")

    @property
    def upstream_name(self) -> str:
        """The name of the upstream member, or its id as text."""
        return str(self.upstream)

    @property
    def input_name(self) -> str:
        """The name of the input that gets the upstream member's result."""
        return self.upstream_name if self.input is None else self.input


@record(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A validated member of a graph."""

    name: str
    submission: Submission
    edges: tuple[Edge, ...]
    join: Join
    draft: bool

    def fingerprint(self, namespace: str) -> bytes:
        """Return a hash of the submission, the edges and the join, to detect that a member was added before."""
        parts = [f"{edge.upstream_name}:{edge.kind}:{edge.input_name}" for edge in self.edges]
        join = f"{self.join.kind}:{self.join.k}:{self.join.siblings}:{self.draft}"
        return self.submission.fingerprint(namespace) + digest("member", self.name, join, *parts).encode()

    def seal(self) -> MemberSpec:
        """Return a draft as a normal member; raise if its edges can never satisfy its join."""
        if not self.draft:
            return self
        check_quorum(self.join, len(self.edges), self.name)
        return replace(self, draft=False)


@dataclass(slots=True)
class Graph:
    """A flow to be submitted. Call `add` for its members, in any order."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    members: dict[str, MemberSpec] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.name = validation.name(self.name, "name")
        self.tags = validation.tags(self.tags)

    def add(
        self,
        name: str,
        kind: str,
        payload: bytes = b"",
        *,
        after: Sequence[Member | Edge | str] = (),
        join: Join | None = None,
        draft: bool = False,
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
    ) -> Member:
        """Add a member, which may start when its edges satisfy its join."""
        member = make_member(
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
        if member.name in self.members:
            message = f"the graph already has a member {member.name!r}; use another name"
            raise InvalidRequest("duplicate_member", message, member=name)
        if len(self.members) >= validation.MAX_GRAPH_MEMBERS:
            raise too_many_members(len(self.members) + 1)
        self.members[member.name] = member
        return Member(member.name)

    def ordered_members(self, *, sealed: bool = False) -> tuple[MemberSpec, ...]:
        """Return all members, each after its upstream members; raise for unknown upstreams and cycles.

        If `sealed` is True, drafts become normal members.
        """
        for member in self.members.values():
            for edge in member.edges:
                upstream = edge.upstream_name
                if upstream not in self.members:
                    message = f"member {member.name!r} comes after unknown member {upstream!r}; add that first"
                    raise InvalidRequest("unknown_member", message, member=member.name, upstream=upstream)
        members = _sort_members(self.members)
        return tuple(item.seal() for item in members) if sealed else members

    def digest(
        self, namespace: str, fingerprints_by_name: Mapping[str, bytes] | None = None, *, sealed: bool = True
    ) -> str:
        """Return a digest of the graph, to detect that the same graph was submitted before."""
        fingerprints = fingerprints_by_name or {
            name: item.fingerprint(namespace) for name, item in self.members.items()
        }
        labels = (f"{key}={value}" for key, value in self.tags.items())
        parts = (fingerprints[name] for name in sorted(fingerprints))
        return digest("flow", namespace, self.name, "sealed" if sealed else "open", *labels, *parts)


def make_member(
    name: object, kind: Any, payload: Any, *, after: object, join: object, draft: object, **options: Any
) -> MemberSpec:
    """Return a validated member."""
    label = validation.name(name, "member name")
    submission = Submission(kind=kind, payload=payload, **options)
    edges = _edges(label, after)
    chosen_join = ALL_OF if join is None else join
    if not isinstance(chosen_join, Join):
        raise validation.wrong_type("join", "made by all_of, any_of or quorum", join)
    member = MemberSpec(
        name=label, submission=submission, edges=edges, join=chosen_join, draft=validation.boolean(draft, "draft")
    )
    if not member.draft:
        check_quorum(chosen_join, len(edges), label)
    return member


def check_quorum(join: Join, edges: int, member: str) -> None:
    """Raise if the join needs more edges than the member has."""
    if join.needed(edges) > edges:
        message = f"member {member!r} needs {join.needed(edges)} satisfied edges but has {edges}; add edges or lower k"
        raise InvalidRequest("quorum_exceeds_edges", message, member=member, k=join.needed(edges), edges=edges)


def too_many_members(number: int) -> InvalidRequest:
    """Return the error for a graph with too many members."""
    limit = validation.MAX_GRAPH_MEMBERS
    message = f"the graph has {number} members, the limit of one call is {limit}; add the others later"
    return InvalidRequest("too_many_members", message, limit=limit)


def _edges(name: str, after: object) -> tuple[Edge, ...]:
    if isinstance(after, str | bytes) or not isinstance(after, Sequence):
        raise validation.wrong_type("after", "a list of members, names or edges", after)
    edges = tuple(item if isinstance(item, Edge) else Edge(item) for item in after)
    names = [edge.upstream_name for edge in edges]
    if name in names:
        raise InvalidRequest("self_edge", f"member {name!r} cannot come after itself; remove the edge", member=name)
    if len(set(names)) != len(names):
        twice = next(item for item in names if names.count(item) > 1)
        message = f"member {name!r} comes after {twice!r} twice; remove one edge"
        raise InvalidRequest("duplicate_edge", message, member=name, upstream=twice)
    inputs = [edge.input_name for edge in edges]
    if len(set(inputs)) != len(inputs):
        message = f"two inputs of member {name!r} have the same name; set input"
        raise InvalidRequest("duplicate_edge", message, member=name)
    return edges


def _name_of(value: object) -> str:
    if isinstance(value, Member):
        return value.name
    return str(value) if isinstance(value, UUID) else validation.name(value, "upstream")


def _sort_members(members: Mapping[str, MemberSpec]) -> tuple[MemberSpec, ...]:
    """Return the members in topological order; raise if there is a cycle."""
    open_edges = {name: len(item.edges) for name, item in members.items()}
    after: dict[str, list[str]] = {}
    for member in members.values():
        for edge in member.edges:
            after.setdefault(edge.upstream_name, []).append(member.name)
    ready = [name for name, number in open_edges.items() if number == 0]
    for name in ready:  # The loop body appends to `ready`.
        for downstream in after.get(name, ()):
            open_edges[downstream] -= 1
            if open_edges[downstream] == 0:
                ready.append(downstream)
    if len(ready) < len(members):
        cycle = sorted(name for name, number in open_edges.items() if number > 0)[:5]
        message = f"the graph has a cycle: {', '.join(cycle)}; remove an edge"
        raise InvalidRequest("cycle", message, members=tuple(cycle))
    return tuple(members[name] for name in ready)


@dataclass(frozen=True, slots=True)
class ChildSubmission:
    """A child that a worker submits; `key` identifies it among the children of its parent.

    A detached child also gets its id from the key, but belongs to no flow and is not cancelled with its parent. Its
    submission may have a key of its own, which is scoped to the namespace.
    """

    key: str
    submission: Submission
    detached: bool = False

    def __post_init__(self) -> None:
        validation.name(self.key, "key")
        validation.boolean(self.detached, "detached")
        if not isinstance(self.submission, Submission):
            raise validation.wrong_type("submission", "a Submission", self.submission)
        if self.submission.id is not None:
            message = "the id of a child is derived from its parent and key; omit the id of its submission"
            raise InvalidRequest("invalid_request", message, field="submission")
        if self.submission.key is not None and not self.detached:
            message = (
                "the key of a child is scoped to its parent; only a detached child may have a key of the namespace"
            )
            raise InvalidRequest("invalid_request", message, field="submission")
