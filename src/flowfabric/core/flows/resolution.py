"""The consequences when members of a flow end: edges resolve, groups are decided, members start or are skipped.

The lock of the flow keeps other transactions from ending, starting or blocking a member, so the rows that were read
stay valid. The consequences are computed in memory until nothing changes, and then written together. A `Resolution`
lists the edges that the caller still has to read: the edges of members that end (`missing_edges`), and the edges of
decided groups whose remaining upstream members must be cancelled (`closing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.states import State
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.flows.graph import Siblings
from flowfabric.core.flows.records import (
    DEPENDENCIES,
    EdgeGroup,
    EdgeState,
    GroupState,
    MemberFacts,
    StoredEdge,
    judge_group,
)

MAX_CANCELLED = 1000
GroupKey = tuple[UUID, int]


@record(frozen=True, slots=True)
class EdgeContext:
    """An open edge with its group and its downstream member."""

    edge: StoredEdge
    group: EdgeGroup
    downstream: MemberFacts


@dataclass(slots=True)
class Resolution:
    """Computes what follows in their flows when some executions end.

    `frozen` are cancelled flows: their edges no longer start, skip or cancel members. A parent that waits for its
    children has started already, so it still continues when they have ended. `failures` describes the failure of each
    member that failed, expired, or was skipped because of a failure.
    """

    now: datetime
    frozen: Collection[UUID] = ()
    knows_all: bool = False
    outcomes: dict[UUID, State] = field(default_factory=dict)
    failures: dict[UUID, str] = field(default_factory=dict)
    groups: dict[GroupKey, EdgeGroup] = field(default_factory=dict)
    changed: set[GroupKey] = field(default_factory=set)
    edges: list[StoredEdge] = field(default_factory=list)
    released: dict[UUID, MemberFacts] = field(default_factory=dict)
    skipped: dict[UUID, MemberFacts] = field(default_factory=dict)
    cancelled: dict[UUID, tuple[MemberFacts, str]] = field(default_factory=dict)
    sweeping: set[UUID] = field(default_factory=set)
    closing: dict[GroupKey, str] = field(default_factory=dict)
    _frontier: list[UUID] = field(default_factory=list)
    _edges_from: dict[UUID, list[EdgeContext]] = field(default_factory=dict)
    _members: dict[UUID, MemberFacts] = field(default_factory=dict)
    _groups_of: dict[UUID, list[GroupKey]] = field(default_factory=dict)
    _lost_to: dict[GroupKey, str] = field(default_factory=dict)

    def end(self, outcomes: Mapping[UUID, State]) -> None:
        """Add executions that have ended, with their outcomes."""
        for id_, outcome in outcomes.items():
            self.outcomes[id_] = outcome
            self.released.pop(id_, None)
            self._frontier.append(id_)
            for key in self._groups_of.get(id_, ()):
                self._close(key)

    @property
    def is_settled(self) -> bool:
        """True if all consequences have been computed."""
        return not self._frontier and not self.closing

    def missing_edges(self) -> list[UUID]:
        """Return the executions whose open edges must be read before `advance` can continue."""
        return [] if self.knows_all else [id_ for id_ in self._frontier if id_ not in self._edges_from]

    def add_edges(self, requested: Iterable[UUID], contexts: Iterable[EdgeContext]) -> None:
        """Add all open edges that lead away from the requested executions."""
        new = {id_ for id_ in requested if id_ not in self._edges_from}
        self._edges_from |= {id_: [] for id_ in new}
        for context in contexts:
            if context.edge.upstream_id in new:
                self._edges_from[context.edge.upstream_id].append(context)
                self._members.setdefault(context.downstream.id, context.downstream)
                self._add_group(context.group)

    def advance(self) -> None:
        """Resolve the edges of all ended executions and decide the groups of these edges.

        Stop when further edges must be read.
        """
        while len(missing := self.missing_edges()) < len(self._frontier):
            ended = [id_ for id_ in self._frontier if self.knows_all or id_ in self._edges_from]
            self._frontier = missing
            resolved: dict[GroupKey, list[EdgeState]] = {}
            for id_ in ended:
                failure = self.failures.get(id_)
                for context in self._edges_from.get(id_, ()):
                    edge = context.edge.resolve(self.outcomes[id_], self.now, after_failure=failure is not None)
                    self.edges.append(edge)
                    if failure is not None and edge.state is EdgeState.IMPOSSIBLE:
                        self._lost_to.setdefault(edge.group_key, failure)
                    resolved.setdefault(edge.group_key, []).append(edge.state)
            for key, states in resolved.items():
                self._set_group(self.groups[key].add_resolved(states))
            for key in resolved:
                self.judge(key)

    def judge(self, key: GroupKey) -> None:
        """If the group is open and can be decided now, decide it, and start or skip its member."""
        group = self.groups[key]
        is_frozen, is_wait = group.flow_id in self.frozen, group.seq != DEPENDENCIES
        if group.state is not GroupState.OPEN or group.draft or (is_frozen and not is_wait):
            return
        state = judge_group(group.join, group.n, group.satisfied, group.impossible)
        if state is GroupState.OPEN:
            return
        self._set_group(replace(group, state=state))
        member = self._members.get(group.downstream_id)
        if member is not None and member.id not in self.outcomes:
            self._decide(member, state, is_wait=is_wait)
        cancels_siblings = group.join.siblings is Siblings.CANCEL_REMAINING and not is_frozen
        if cancels_siblings and group.satisfied + group.impossible < group.n:
            self.closing[key] = state.value

    def consider(self, group: EdgeGroup, member: MemberFacts, failure: str | None = None) -> None:
        """Add a group that is new or no longer a draft, and decide it if its edges already allow that.

        `failure` describes the failure of an upstream member that made an edge of the group impossible.
        """
        self._members[member.id] = member
        if failure is not None:
            self._lost_to[group.key] = failure
        self._add_group(group)
        self.changed.add(group.key)
        self.judge(group.key)

    def sweep(self, group: EdgeGroup) -> None:
        """Continue to cancel upstream members of a decided group that had too many for one transaction."""
        self._add_group(group)
        self._set_group(replace(group, sweeping=False))
        self.closing[group.key] = group.state.value

    def cancel_siblings(self, into: Iterable[tuple[StoredEdge, MemberFacts]]) -> None:
        """Cancel the upstream members of decided groups, unless an open group still needs them."""
        why, self.closing = self.closing, {}
        for edge, member in sorted(into, key=lambda item: item[0].upstream_id.bytes):
            key = edge.group_key
            ended = member.id in self.outcomes or member.state.is_terminal
            if key not in why or ended or self._is_needed(member.id):
                continue
            if len(self.cancelled) >= MAX_CANCELLED:
                self._set_group(replace(self.groups[key], sweeping=True))
                self.sweeping.add(edge.flow_id)
                continue
            self.cancelled[member.id] = member, why[key]
            self.end({member.id: State.CANCELLED})

    def _is_needed(self, id_: UUID) -> bool:
        groups = (self.groups[item.group.key] for item in self._edges_from.get(id_, ()))
        return any(group.state is GroupState.OPEN for group in groups)

    def _decide(self, member: MemberFacts, state: GroupState, *, is_wait: bool) -> None:
        if is_wait or state is GroupState.FIRED:
            # A parent that waits for children continues even if they failed.
            if member.is_blocked:
                self.released[member.id] = member
        elif state is GroupState.IMPOSSIBLE and member.state is State.BLOCKED:
            # A held member is skipped too, since it can no longer start.
            self.skipped[member.id] = member
            if (failure := self._lost_to.get((member.id, DEPENDENCIES))) is not None:
                self.failures[member.id] = failure
            self.end({member.id: State.SKIPPED})

    def _add_group(self, group: EdgeGroup) -> None:
        if group.key in self.groups:
            return
        self.groups[group.key] = group
        self._groups_of.setdefault(group.downstream_id, []).append(group.key)
        if group.downstream_id in self.outcomes:
            self._close(group.key)

    def _close(self, key: GroupKey) -> None:
        """Close an open group whose member has ended before the group was decided."""
        if self.groups[key].state is GroupState.OPEN:
            self._set_group(replace(self.groups[key], state=GroupState.CLOSED))

    def _set_group(self, group: EdgeGroup) -> None:
        self.groups[group.key] = group
        self.changed.add(group.key)


def recount(group: EdgeGroup, edges: Iterable[StoredEdge]) -> EdgeGroup:
    """Return the group with its counters recomputed from its edges, and with the state that follows from them."""
    states = [edge.state for edge in edges]
    satisfied, impossible = states.count(EdgeState.SATISFIED), states.count(EdgeState.IMPOSSIBLE)
    state = GroupState.OPEN if group.draft else judge_group(group.join, len(states), satisfied, impossible)
    return replace(group, n=len(states), satisfied=satisfied, impossible=impossible, sweeping=False, state=state)
