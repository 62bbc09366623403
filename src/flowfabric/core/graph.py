"""A flow as its caller draws it: members by name, edges between them, and how a member's edges are joined.

Everything that can be wrong with a graph is refused here, when it is drawn or when it is read out: unknown and
repeated names, edges to oneself, cycles, more members than one call may bring, a quorum that its edges cannot reach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fences import digest
from flowfabric.core.frozen import put, record, replace
from flowfabric.core.policy import DEFAULT_POLICY, Policy
from flowfabric.core.requests import Submission, choice

_NO_TAGS: Mapping[str, str] = {}


class EdgeKind(StrEnum):
    """Which end of the upstream satisfies an edge."""

    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"
    ON_COMPLETION = "on_completion"


class JoinKind(StrEnum):
    """How many of a member's edges must be satisfied."""

    ALL_OF = "all_of"
    ANY_OF = "any_of"
    QUORUM = "quorum"


class Siblings(StrEnum):
    """What becomes of upstreams that no longer matter once a member's group is decided."""

    LET_RUN = "let_run"
    CANCEL_REMAINING = "cancel_remaining"


@dataclass(frozen=True, slots=True)
class Join:
    """How the edges of a member are joined. Made by `all_of`, `any_of` and `quorum`."""

    kind: JoinKind = JoinKind.ALL_OF
    k: int | None = None
    siblings: Siblings = Siblings.LET_RUN

    def __post_init__(self) -> None:
        put(self, kind=choice(JoinKind, self.kind, "join"), siblings=choice(Siblings, self.siblings, "siblings"))
        if self.kind is JoinKind.QUORUM:
            put(self, k=_quorum(self.k))
        elif self.k is not None:
            raise InvalidRequest("invalid_quorum", f"only a quorum has a number, {self.kind} has none")

    def needed(self, edges: int) -> int:
        """How many of so many edges must be satisfied."""
        if self.kind is JoinKind.ALL_OF:
            return edges
        return 1 if self.k is None else self.k


def all_of(*, siblings: Siblings | str = Siblings.LET_RUN) -> Join:
    """The member starts when all of its edges are satisfied."""
    return Join(JoinKind.ALL_OF, None, choice(Siblings, siblings, "siblings"))


def any_of(*, siblings: Siblings | str = Siblings.CANCEL_REMAINING) -> Join:
    """The member starts when one of its edges is satisfied."""
    return Join(JoinKind.ANY_OF, None, choice(Siblings, siblings, "siblings"))


def quorum(k: int, *, siblings: Siblings | str = Siblings.CANCEL_REMAINING) -> Join:
    """The member starts when `k` of its edges are satisfied."""
    return Join(JoinKind.QUORUM, k, choice(Siblings, siblings, "siblings"))


ALL_OF = all_of()


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a graph that is being drawn, to be named in `after`."""

    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """What a member comes after: which upstream, at which end of it, and under which name its result is an input."""

    upstream: Member | UUID | str
    kind: EdgeKind = EdgeKind.ON_SUCCESS
    input: str | None = None

    def __post_init__(self) -> None:
        put(self, upstream=_name_of(self.upstream), kind=choice(EdgeKind, self.kind, "kind"))
        if self.input is not None:
            limits.name(self.input, "input")

    @property
    def upstream_name(self) -> str:
        """The name of the upstream, or the text of its id."""
        return str(self.upstream)

    @property
    def input_name(self) -> str:
        """The name of the upstream's result among the inputs."""
        return self.upstream_name if self.input is None else self.input


@record(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One member as it was drawn."""

    name: str
    submission: Submission
    edges: tuple[Edge, ...]
    join: Join
    draft: bool

    def fingerprint(self, namespace: str) -> bytes:
        """What a repeated member is compared by: its submission, its edges and its join."""
        parts = [f"{edge.upstream_name}:{edge.kind}:{edge.input_name}" for edge in self.edges]
        join = f"{self.join.kind}:{self.join.k}:{self.join.siblings}:{self.draft}"
        return self.submission.fingerprint(namespace) + digest("member", self.name, join, *parts).encode()

    def sealed(self) -> Drawn:
        """The member as no draft; refused if its edges can never satisfy its join."""
        if not self.draft:
            return self
        check_quorum(self.join, len(self.edges), self.name)
        return replace(self, draft=False)


@dataclass(slots=True)
class Graph:
    """A flow to be submitted: `add` its members, in any order."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    members: dict[str, Drawn] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.name = limits.name(self.name, "name")
        self.tags = limits.tags(self.tags)

    def add(
        self, name: str, kind: str, payload: bytes = b"", *, after: Sequence[Member | Edge | str] = (),
        join: Join | None = None, draft: bool = False, encoding: str = "json", lane: str = "default",
        priority: int = 0, requires: Collection[str] = (), policy: Policy = DEFAULT_POLICY,
        tags: Mapping[str, str] = _NO_TAGS, ready_at: datetime | None = None, delay: limits.Duration | None = None,
        deadline: datetime | None = None, signals: Sequence[str] = (),
    ) -> Member:  # fmt: skip
        """Draws a member; it may start when what it comes after has ended as its edges and its join say."""
        drawn = draw(
            name, kind, payload, after=after, join=join, draft=draft, encoding=encoding, lane=lane,
            priority=priority, requires=requires, policy=policy, tags=tags, ready_at=ready_at, delay=delay,
            deadline=deadline, signals=signals,
        )  # fmt: skip
        if drawn.name in self.members:
            raise InvalidRequest("duplicate_member", f"the graph has a member {drawn.name!r} already", member=name)
        if len(self.members) >= limits.GRAPH_MEMBERS:
            raise too_many_members(len(self.members) + 1)
        self.members[drawn.name] = drawn
        return Member(drawn.name)

    def drawn(self, *, sealed: bool = False) -> tuple[Drawn, ...]:
        """All members, each after its upstreams; refuses unknown upstreams and cycles. A sealed graph has no drafts."""
        for item in self.members.values():
            for edge in item.edges:
                if edge.upstream_name not in self.members:
                    message = f"member {item.name!r} comes after {edge.upstream_name!r}, which the graph does not have"
                    raise InvalidRequest("unknown_member", message, member=item.name, upstream=edge.upstream_name)
        found = _in_order(self.members)
        return tuple(item.sealed() for item in found) if sealed else found

    def digest(self, namespace: str, known: Mapping[str, bytes] | None = None, *, sealed: bool = True) -> str:
        """What a repeated submit is compared by; `known` are the fingerprints of all members by name."""
        fingerprints = known or {name: item.fingerprint(namespace) for name, item in self.members.items()}
        labels = (f"{key}={value}" for key, value in self.tags.items())
        parts = (fingerprints[name] for name in sorted(fingerprints))
        return digest("flow", namespace, self.name, "sealed" if sealed else "open", *labels, *parts)


def draw(name: object, kind: Any, payload: Any, *, after: object, join: object, draft: object, **options: Any) -> Drawn:
    """A member, checked."""
    label = limits.name(name, "member name")
    submission = Submission(kind=kind, payload=payload, **options)
    edges = _edges(label, after)
    wanted = ALL_OF if join is None else join
    if not isinstance(wanted, Join):
        message = f"join must be made by all_of, any_of or quorum, not {type(join).__name__}"
        raise InvalidRequest("invalid_type", message, field="join")
    drawn = Drawn(name=label, submission=submission, edges=edges, join=wanted, draft=limits.truth(draft, "draft"))
    if not drawn.draft:
        check_quorum(wanted, len(edges), label)
    return drawn


def check_quorum(join: Join, edges: int, member: str) -> None:
    """Refuses a join that so few edges can never satisfy."""
    if join.needed(edges) > edges:
        message = f"member {member!r} needs {join.needed(edges)} of its edges, and has {edges}"
        raise InvalidRequest("quorum_exceeds_edges", message, member=member, k=join.needed(edges), edges=edges)


def too_many_members(number: int) -> InvalidRequest:
    """The refusal of a graph over the limit."""
    message = f"a graph may have {limits.GRAPH_MEMBERS} members in one call, this one has {number}; add the rest later"
    return InvalidRequest("too_many_members", message, limit=limits.GRAPH_MEMBERS)


def _edges(name: str, after: object) -> tuple[Edge, ...]:
    if isinstance(after, str | bytes) or not isinstance(after, Sequence):
        message = f"after must be a list of members, names or edges, not {type(after).__name__}"
        raise InvalidRequest("invalid_type", message, field="after")
    edges = tuple(item if isinstance(item, Edge) else Edge(item) for item in after)
    names = [edge.upstream_name for edge in edges]
    if name in names:
        raise InvalidRequest("self_edge", f"member {name!r} cannot come after itself", member=name)
    if len(set(names)) != len(names):
        twice = next(item for item in names if names.count(item) > 1)
        message = f"member {name!r} comes after {twice!r} twice"
        raise InvalidRequest("duplicate_edge", message, member=name, upstream=twice)
    inputs = [edge.input_name for edge in edges]
    if len(set(inputs)) != len(inputs):
        raise InvalidRequest("duplicate_edge", f"two inputs of member {name!r} have the same name", member=name)
    return edges


def _name_of(value: object) -> str:
    if isinstance(value, Member):
        return value.name
    return str(value) if isinstance(value, UUID) else limits.name(value, "upstream")


def _quorum(k: object) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidRequest("invalid_quorum", f"a quorum must be a whole number of at least 1, not {limits.shown(k)}")
    return k


def _in_order(members: Mapping[str, Drawn]) -> tuple[Drawn, ...]:
    """The members so that each stands after its upstreams, which a cycle makes impossible."""
    left = {name: len(item.edges) for name, item in members.items()}
    after: dict[str, list[str]] = {}
    for item in members.values():
        for edge in item.edges:
            after.setdefault(edge.upstream_name, []).append(item.name)
    ready = [name for name, number in left.items() if number == 0]
    for name in ready:  # It grows while it is walked.
        for downstream in after.get(name, ()):
            left[downstream] -= 1
            if left[downstream] == 0:
                ready.append(downstream)
    if len(ready) < len(members):
        circle = sorted(name for name, number in left.items() if number > 0)[:5]
        raise InvalidRequest("cycle", f"the graph has a cycle among {', '.join(circle)}", members=tuple(circle))
    return tuple(members[name] for name in ready)


@dataclass(frozen=True, slots=True)
class ChildSubmission:
    """A child to be submitted by a worker; `key` tells it apart from its parent's other children. A detached one is
    stored with them, under an id that follows from the key, but is on its own then: no part of a flow, not cancelled
    with it."""

    key: str
    submission: Submission
    detached: bool = False

    def __post_init__(self) -> None:
        limits.name(self.key, "key")
        limits.truth(self.detached, "detached")
        if not isinstance(self.submission, Submission):
            message = f"a child must be a Submission, not {type(self.submission).__name__}"
            raise InvalidRequest("invalid_type", message, field="submission")
        if self.submission.id is not None or self.submission.key is not None:
            message = "the id of a child follows from its parent and its key; give neither an id nor a submission key"
            raise InvalidRequest("invalid_request", message, field="submission")
