"""What follows when members of a flow end: edges are resolved, groups decided, members released, skipped or cancelled,
until nothing changes.

Under the lock of the flow nobody else ends, releases or blocks a member, so what was read stays true; everything that
follows is worked out here, in memory, and written at once afterwards. A `Resolution` asks for what it has not seen:
the edges of those who end (`wants_edges`), and the edges into groups whose remaining siblings are to go (`closing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.flows import (
    DEPENDENCIES,
    EdgeGroup,
    EdgeState,
    GroupState,
    MemberFacts,
    StoredEdge,
    judged,
)  # fmt: skip
from flowfabric.core.frozen import record, replace
from flowfabric.core.graph import Siblings
from flowfabric.core.states import State

MOST_CANCELLED = 1000
GroupKey = tuple[UUID, int]


@record(frozen=True, slots=True)
class Surrounding:
    """An open edge, with the group that it belongs to and what is known of its downstream."""

    edge: StoredEdge
    group: EdgeGroup
    downstream: MemberFacts


@dataclass(slots=True)
class Resolution:
    """The consequences of some ends. `frozen` are cancelled flows: nobody starts, is skipped or cancelled by an edge in
    them, but a parent that waits for its children has started, and goes on when they have ended."""

    now: datetime
    frozen: Collection[UUID] = ()
    knows_all: bool = False
    outcomes: dict[UUID, State] = field(default_factory=dict)
    groups: dict[GroupKey, EdgeGroup] = field(default_factory=dict)
    changed: set[GroupKey] = field(default_factory=set)
    edges: list[StoredEdge] = field(default_factory=list)
    released: dict[UUID, MemberFacts] = field(default_factory=dict)
    skipped: dict[UUID, MemberFacts] = field(default_factory=dict)
    cancelled: dict[UUID, tuple[MemberFacts, str]] = field(default_factory=dict)
    sweeping: set[UUID] = field(default_factory=set)
    closing: dict[GroupKey, str] = field(default_factory=dict)
    _frontier: list[UUID] = field(default_factory=list)
    _known: dict[UUID, list[Surrounding]] = field(default_factory=dict)
    _members: dict[UUID, MemberFacts] = field(default_factory=dict)
    _groups_of: dict[UUID, list[GroupKey]] = field(default_factory=dict)

    def end(self, outcomes: Mapping[UUID, State]) -> None:
        """Takes note that these executions have ended so."""
        for id_, outcome in outcomes.items():
            self.outcomes[id_] = outcome
            self.released.pop(id_, None)
            self._frontier.append(id_)
            for key in self._groups_of.get(id_, ()):
                self._close(key)

    @property
    def is_settled(self) -> bool:
        """True when nothing follows any more."""
        return not self._frontier and not self.closing

    def wants_edges(self) -> list[UUID]:
        """Whose open edges must be known to go on."""
        return [] if self.knows_all else [id_ for id_ in self._frontier if id_ not in self._known]

    def learn(self, asked: Iterable[UUID], found: Iterable[Surrounding]) -> None:
        """Takes note of all open edges that lead away from some executions."""
        new = {id_ for id_ in asked if id_ not in self._known}
        self._known |= {id_: [] for id_ in new}
        for item in found:
            if item.edge.upstream_id in new:
                self._known[item.edge.upstream_id].append(item)
                self._members.setdefault(item.downstream.id, item.downstream)
                self._take(item.group)

    def advance(self) -> None:
        """Resolves the edges of everybody who has ended, and decides their groups. Asks for more by `wants_edges`."""
        while len(unknown := self.wants_edges()) < len(self._frontier):
            ended = [id_ for id_ in self._frontier if self.knows_all or id_ in self._known]
            self._frontier = unknown
            came: dict[GroupKey, list[EdgeState]] = {}
            for id_ in ended:
                for item in self._known.get(id_, ()):
                    edge = item.edge.ended(self.outcomes[id_], self.now)
                    self.edges.append(edge)
                    came.setdefault(edge.group_key, []).append(edge.state)
            for key, states in came.items():
                self._put(self.groups[key].counting(states))
            for key in came:
                self.judge(key)

    def judge(self, key: GroupKey) -> None:
        """Decides a group if it can be, once; whoever it belongs to is released or skipped."""
        group = self.groups[key]
        is_frozen, is_wait = group.flow_id in self.frozen, group.seq != DEPENDENCIES
        if group.state is not GroupState.OPEN or group.draft or (is_frozen and not is_wait):
            return
        state = judged(group.join, group.n, group.satisfied, group.impossible)
        if state is GroupState.OPEN:
            return
        self._put(replace(group, state=state))
        member = self._members.get(group.downstream_id)
        if member is not None and member.id not in self.outcomes:
            self._decide(member, state, is_wait=is_wait)
        lets_go = group.join.siblings is Siblings.CANCEL_REMAINING and not is_frozen
        if lets_go and group.satisfied + group.impossible < group.n:
            self.closing[key] = state.value

    def consider(self, group: EdgeGroup, member: MemberFacts) -> None:
        """Takes note of a group that may be decided without any end: it is new, or no longer a draft."""
        self._members[member.id] = member
        self._take(group)
        self.changed.add(group.key)
        self.judge(group.key)

    def sweep(self, group: EdgeGroup) -> None:
        """Goes on with a decided group whose siblings were too many for one transaction."""
        self._take(group)
        self._put(replace(group, sweeping=False))
        self.closing[group.key] = group.state.value

    def cancel_siblings(self, into: Iterable[tuple[StoredEdge, MemberFacts]]) -> None:
        """Ends the upstreams of groups that are decided, except those that another open group still needs."""
        why, self.closing = self.closing, {}
        for edge, member in sorted(into, key=lambda item: item[0].upstream_id.bytes):
            key = edge.group_key
            ended = member.id in self.outcomes or member.state.is_terminal
            if key not in why or ended or self._is_needed(member.id):
                continue
            if len(self.cancelled) >= MOST_CANCELLED:
                self._put(replace(self.groups[key], sweeping=True))
                self.sweeping.add(edge.flow_id)
                continue
            self.cancelled[member.id] = member, why[key]
            self.end({member.id: State.CANCELLED})

    def _is_needed(self, id_: UUID) -> bool:
        groups = (self.groups[item.group.key] for item in self._known.get(id_, ()))
        return any(group.state is GroupState.OPEN for group in groups)

    def _decide(self, member: MemberFacts, state: GroupState, *, is_wait: bool) -> None:
        if is_wait or state is GroupState.FIRED:
            # A parent goes on also if its children did not end as it would have liked.
            if member.is_blocked:
                self.released[member.id] = member
        elif state is GroupState.IMPOSSIBLE and member.state is State.BLOCKED:
            # Also if an operator holds it: there is nothing left to hold it for.
            self.skipped[member.id] = member
            self.end({member.id: State.SKIPPED})

    def _take(self, group: EdgeGroup) -> None:
        if group.key in self.groups:
            return
        self.groups[group.key] = group
        self._groups_of.setdefault(group.downstream_id, []).append(group.key)
        if group.downstream_id in self.outcomes:
            self._close(group.key)

    def _close(self, key: GroupKey) -> None:
        """A group whose member ends by something else needs nobody any more."""
        if self.groups[key].state is GroupState.OPEN:
            self._put(replace(self.groups[key], state=GroupState.CLOSED))

    def _put(self, group: EdgeGroup) -> None:
        self.groups[group.key] = group
        self.changed.add(group.key)


def recounted(group: EdgeGroup, edges: Iterable[StoredEdge]) -> EdgeGroup:
    """The group with its counters as its edges have it; decided again unless they leave it open, or it is a draft."""
    states = [edge.state for edge in edges]
    counted = replace(
        group, n=len(states), satisfied=states.count(EdgeState.SATISFIED),
        impossible=states.count(EdgeState.IMPOSSIBLE), sweeping=False,
    )  # fmt: skip
    if group.draft:
        return replace(counted, state=GroupState.OPEN)
    return replace(counted, state=judged(counted.join, counted.n, counted.satisfied, counted.impossible))
