"""The consequences when members of a flow are replayed: edges open again, and members wait or run again.

The edges from a replayed member to members that have not started open again. A member that was skipped because of such
an edge runs again if its group can still fire, and its own edges then open too. Members that were cancelled because the
group could no longer fire run again too, if the group needs them. This continues until nothing changes. Edges to
members that have started keep their state.

The lock of the flow covers its edges and groups, but a worker may still claim a waiting member. So the caller then
locks the `waiting` members, and removes those that have started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from flowfabric.core.executions.states import State
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.graph import Siblings
from flowfabric.core.flows.records import EdgeGroup, EdgeState, GroupState, MemberFacts, StoredEdge, judge_group
from flowfabric.core.flows.resolution import EdgeContext


@dataclass(slots=True)
class Reopening:
    """Computes which edges open again, and which members are revived, when some members of a flow are replayed.

    Without `downstream`, skipped members stay skipped. The value of `revived` is the member whose replay or revival
    brought a skipped member back.
    """

    downstream: bool = True
    edges: dict[tuple[UUID, UUID], StoredEdge] = field(default_factory=dict)
    revived: dict[UUID, UUID | None] = field(default_factory=dict)
    _groups: dict[UUID, EdgeGroup] = field(default_factory=dict)
    _members: dict[UUID, MemberFacts] = field(default_factory=dict)
    _replayed: set[UUID] = field(default_factory=set)
    _frontier: list[UUID] = field(default_factory=list)
    _stuck: dict[UUID, list[UUID] | None] = field(default_factory=dict)

    def replay(self, id_: UUID, group: EdgeGroup | None = None, inbound: Sequence[StoredEdge] = ()) -> None:
        """Add a replayed member. With its `group`, its impossible `inbound` edges open again."""
        self._replayed.add(id_)
        self._frontier.append(id_)
        if group is not None:
            self._groups[id_] = group
            for edge in inbound:
                if edge.state is EdgeState.IMPOSSIBLE:
                    self._open(edge)

    def revive(self, group: EdgeGroup) -> None:
        """Add a skipped member whose group can fire since an earlier replay."""
        self._groups[group.downstream_id] = group
        self._try(group.downstream_id, None)

    def take_frontier(self) -> list[UUID]:
        """Return the members whose outgoing edges must be added next."""
        frontier, self._frontier = self._frontier, []
        return frontier

    def add_edges(self, contexts: Iterable[EdgeContext]) -> None:
        """Add the edges from the members of the last frontier: open them, and revive skipped members."""
        opened: dict[UUID, UUID] = {}
        for context in contexts:
            member, edge = context.downstream, context.edge
            if member.started:
                continue
            self._members.setdefault(member.id, member)
            self._groups.setdefault(member.id, context.group)
            if self._open(edge):
                opened[member.id] = edge.upstream_id
        for id_, upstream_id in opened.items():
            if self.downstream and self._members[id_].state is State.SKIPPED and not self._runs_again(id_):
                self._try(id_, upstream_id)
        self._free_stuck()

    def take_stuck(self) -> list[UUID]:
        """Return skipped members whose groups may need members that were cancelled because of them."""
        return [id_ for id_, siblings in self._stuck.items() if siblings is None]

    def add_siblings(
        self, stuck: Iterable[UUID], siblings: Iterable[tuple[StoredEdge, MemberFacts]], groups: Iterable[EdgeGroup]
    ) -> None:
        """Add the members that were cancelled because the groups of stuck members became impossible.

        `groups` are the groups of those of them that have not started.
        """
        for group in groups:
            self._groups.setdefault(group.downstream_id, group)
        self._stuck |= {id_: [] for id_ in stuck}
        for edge, sibling in siblings:
            self._members.setdefault(sibling.id, sibling)
            known = self._stuck[edge.downstream_id]
            assert known is not None, "the caller passes siblings of stuck members"
            known.append(sibling.id)
        self._free_stuck()

    @property
    def waiting(self) -> list[UUID]:
        """The members that have not ended and have an edge that opened again."""
        downstream = {id_ for _, id_ in self.edges}
        return sorted(id_ for id_ in downstream & set(self._members) if not self._members[id_].state.is_terminal)

    def take_out(self, id_: UUID) -> None:
        """Keep the edges of a member that has started meanwhile."""
        self.edges = {key: edge for key, edge in self.edges.items() if edge.downstream_id != id_}
        del self._groups[id_]

    def must_wait(self, id_: UUID) -> bool:
        """Return True if the member has a group that is open now."""
        return id_ in self._groups and self._state(id_) is GroupState.OPEN

    def changed_groups(self) -> list[EdgeGroup]:
        """Return the groups with their new counters and states. A member that stays ended keeps its group's state."""
        return [self._changed(id_) for id_ in self._groups]

    def _changed(self, id_: UUID) -> EdgeGroup:
        group, member = self._groups[id_], self._members.get(id_)
        stays_ended = member is not None and member.state.is_terminal and not self._runs_again(id_)
        state = group.state if stays_ended else self._state(id_)
        return replace(group, state=state, sweeping=False)

    def _runs_again(self, id_: UUID) -> bool:
        return id_ in self._replayed or id_ in self.revived

    def _try(self, id_: UUID, upstream_id: UUID | None) -> None:
        """Bring a skipped member back if its group can fire."""
        if self._state(id_) is not GroupState.IMPOSSIBLE:
            self._stuck.pop(id_, None)
            self._bring_back(id_, upstream_id)
        elif self._groups[id_].join.siblings is Siblings.CANCEL_REMAINING:
            self._stuck.setdefault(id_, None)

    def _free_stuck(self) -> None:
        """Bring cancelled siblings back if the group of a stuck member can fire with them."""
        for id_, siblings in self._stuck.items():
            lost = [other for other in siblings or () if not self._runs_again(other) and self._can_run(other)]
            group = self._groups[id_]
            if judge_group(group.join, group.n, group.satisfied, group.impossible - len(lost)) is GroupState.IMPOSSIBLE:
                continue
            for other in lost:
                self._bring_back(other, id_)

    def _can_run(self, id_: UUID) -> bool:
        return id_ not in self._groups or self._members[id_].started or self._state(id_) is not GroupState.IMPOSSIBLE

    def _bring_back(self, id_: UUID, upstream_id: UUID | None) -> None:
        self.revived[id_] = upstream_id
        self._frontier.append(id_)

    def _open(self, edge: StoredEdge) -> bool:
        """Open an edge that is not open yet, and return whether it changed."""
        key = edge.upstream_id, edge.downstream_id
        if key in self.edges or edge.state is EdgeState.OPEN:
            return False
        self.edges[key] = edge.reopen()
        group = self._groups[edge.downstream_id]
        self._groups[edge.downstream_id] = replace(
            group,
            satisfied=group.satisfied - (edge.state is EdgeState.SATISFIED),
            impossible=group.impossible - (edge.state is EdgeState.IMPOSSIBLE),
        )
        return True

    def _state(self, id_: UUID) -> GroupState:
        group = self._groups[id_]
        return GroupState.OPEN if group.draft else judge_group(group.join, group.n, group.satisfied, group.impossible)
