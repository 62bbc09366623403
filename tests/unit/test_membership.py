"""What follows from an end, worked out in memory: against the model, for graphs drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.flows import EdgeGroup, EdgeState, GroupState, MemberFacts, StoredEdge
from flowfabric.core.membership import Resolution, Surrounding
from flowfabric.core.states import BlockingReason, State
from tests.concurrency.flow_model import (
    EdgePicture,
    FlowPicture,
    GroupPicture,
    MemberPicture,
    problems,
    step_problems,
)
from tests.concurrency.random_graphs import draw_members

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLOW = UUID(int=7)
ENDS = (State.COMPLETED,) * 5 + (State.FAILED, State.FAILED, State.CANCELLED, State.EXPIRED)


@dataclass
class Memory:
    """A flow as a store would have it."""

    states: dict[UUID, State] = field(default_factory=dict)
    started: set[UUID] = field(default_factory=set)
    siblings: set[UUID] = field(default_factory=set)
    edges: dict[tuple[UUID, UUID], StoredEdge] = field(default_factory=dict)
    groups: dict[tuple[UUID, int], EdgeGroup] = field(default_factory=dict)

    @classmethod
    def drawn(cls, chance: random.Random) -> Memory:
        memory = cls()
        for place, item in enumerate(draw_members(chance, 25)):
            id_ = UUID(int=place)
            memory.states[id_] = State.BLOCKED if item.after else State.WAITING
            for edge in item.after:
                upstream = UUID(int=int(edge.upstream_name[1:]))
                memory.edges[upstream, id_] = StoredEdge(
                    flow_id=FLOW, upstream_id=upstream, downstream_id=id_, seq=0, kind=edge.kind, input=edge.input_name
                )
            if item.after:
                group = EdgeGroup(downstream_id=id_, seq=0, flow_id=FLOW, join=item.join, n=len(item.after))
                memory.groups[group.key] = group
        return memory

    def facts(self, id_: UUID) -> MemberFacts:
        state = self.states[id_]
        blocked = state is State.BLOCKED
        return MemberFacts(
            id=id_, flow_id=FLOW, state=state, ready_at=None, parent_id=None, has_children=False,
            started=id_ in self.started,
            blocking_reason=BlockingReason.WAITING_FOR_CHILDREN if blocked else BlockingReason.NONE,
        )  # fmt: skip

    def end(self, ends: dict[UUID, State]) -> Resolution:
        """Lets members end together, and everything that follows."""
        found = Resolution(NOW)
        self.states |= ends
        found.end(ends)
        while True:
            while wanted := found.wants_edges():
                found.learn(wanted, self._leading_from(wanted))
                found.advance()
            found.advance()
            if not found.closing:
                break
            into = self._into(set(found.closing))
            siblings = [member.id for _, member in into]
            found.learn(siblings, self._leading_from(siblings))
            found.cancel_siblings(into)
        self._apply(found)
        return found

    def _leading_from(self, ids: list[UUID]) -> list[Surrounding]:
        edges = [edge for edge in self.edges.values() if edge.upstream_id in ids and edge.state is EdgeState.OPEN]
        return [Surrounding(edge, self.groups[edge.downstream_id, 0], self.facts(edge.downstream_id)) for edge in edges]

    def _into(self, keys: set[tuple[UUID, int]]) -> list[tuple[StoredEdge, MemberFacts]]:
        edges = [edge for edge in self.edges.values() if (edge.downstream_id, 0) in keys]
        return [(edge, self.facts(edge.upstream_id)) for edge in edges if edge.state is EdgeState.OPEN]

    def _apply(self, found: Resolution) -> None:
        for edge in found.edges:
            assert self.edges[edge.upstream_id, edge.downstream_id].state is EdgeState.OPEN, "resolved twice"
            self.edges[edge.upstream_id, edge.downstream_id] = edge
        self.groups |= {key: found.groups[key] for key in found.changed}
        for id_ in found.released:
            assert self.states[id_] is State.BLOCKED
            self.states[id_] = State.WAITING
        for id_, state in (
            *((id_, State.SKIPPED) for id_ in found.skipped),
            *((id_, State.CANCELLED) for id_ in found.cancelled),
        ):
            assert not self.states[id_].is_terminal
            self.states[id_] = state
        self.siblings |= set(found.cancelled)
        for id_, state in self.states.items():
            group = self.groups.get((id_, 0))
            if state.is_terminal and group is not None and group.state is GroupState.OPEN:
                self.groups[group.key] = replace(group, state=GroupState.CLOSED)

    def picture(self) -> FlowPicture:
        members = {str(id_): self._member(id_) for id_ in self.states}
        edges = tuple(
            EdgePicture(str(item.upstream_id), str(item.downstream_id), 0, item.kind.value, item.state.value)
            for item in self.edges.values()
        )
        groups = {(str(key[0]), 0): _group(item) for key, item in self.groups.items()}
        return FlowPicture(str(FLOW), False, False, False, None, members, edges, groups)

    def _member(self, id_: UUID) -> MemberPicture:
        facts = self.facts(id_)
        by = "flow_sibling" if id_ in self.siblings else None
        return MemberPicture(str(id_), facts.state.value, facts.blocking_reason.value, facts.started, by)


def _group(group: EdgeGroup) -> GroupPicture:
    join = group.join
    return GroupPicture(
        str(group.downstream_id), 0, join.kind.value, join.k, join.siblings.value, group.state.value, group.n,
        group.satisfied, group.impossible, group.draft,
    )  # fmt: skip


@given(st.randoms(use_true_random=False), st.booleans())
def test_whatever_ends_the_rest_of_the_flow_follows_as_the_model_says(chance: random.Random, together: bool) -> None:
    memory = Memory.drawn(chance)
    while ready := [id_ for id_, state in memory.states.items() if state in (State.WAITING, State.ACTIVE)]:
        ending = chance.sample(ready, chance.randint(1, len(ready)) if together else 1)
        memory.started |= set(ending)
        before = memory.picture()
        memory.end({id_: chance.choice(ENDS) for id_ in ending})
        assert problems(memory.picture()) == []
        if not together:
            assert list(step_problems(before, memory.picture())) == []
    assert all(state.is_terminal for state in memory.states.values()), "somebody is stuck"
