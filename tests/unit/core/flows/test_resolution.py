"""Tests for resolving flow members in memory, compared with the model for random graphs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.flows.records import FAILURES, EdgeGroup, EdgeState, GroupState, MemberFacts, StoredEdge
from flowfabric.core.flows.resolution import EdgeContext, Resolution
from tests.concurrency.flow_model import (
    EdgePicture,
    FlowPicture,
    GroupPicture,
    MemberPicture,
    find_problems,
    find_step_problems,
)
from tests.concurrency.random_graphs import draw_members

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLOW = UUID(int=7)
ENDS = (State.COMPLETED,) * 5 + (State.FAILED, State.FAILED, State.CANCELLED, State.EXPIRED)


@dataclass
class FlowInMemory:
    """The rows of a flow as a store would hold them, kept in dicts and sets."""

    states: dict[UUID, State] = field(default_factory=dict)
    started: set[UUID] = field(default_factory=set)
    siblings: set[UUID] = field(default_factory=set)
    failures: set[UUID] = field(default_factory=set)
    edges: dict[tuple[UUID, UUID], StoredEdge] = field(default_factory=dict)
    groups: dict[tuple[UUID, int], EdgeGroup] = field(default_factory=dict)

    @classmethod
    def make_random(cls, rng: random.Random) -> FlowInMemory:
        flow = cls()
        for place, spec in enumerate(draw_members(rng, 25)):
            id_ = UUID(int=place)
            flow.states[id_] = State.BLOCKED if spec.after else State.WAITING
            for edge in spec.after:
                upstream = UUID(int=int(edge.upstream_name[1:]))
                flow.edges[upstream, id_] = StoredEdge(
                    flow_id=FLOW, upstream_id=upstream, downstream_id=id_, seq=0, kind=edge.kind, input=edge.input_name
                )
            if spec.after:
                group = EdgeGroup(downstream_id=id_, seq=0, flow_id=FLOW, join=spec.join, n=len(spec.after))
                flow.groups[group.key] = group
        return flow

    def facts(self, id_: UUID) -> MemberFacts:
        state = self.states[id_]
        blocked = state is State.BLOCKED
        return MemberFacts(
            id=id_,
            flow_id=FLOW,
            state=state,
            ready_at=None,
            parent_id=None,
            has_children=False,
            started=id_ in self.started,
            blocking_reason=BlockingReason.WAITING_FOR_CHILDREN if blocked else BlockingReason.NONE,
        )

    def end(self, ends: dict[UUID, State]) -> Resolution:
        """End several members together and apply everything that follows."""
        resolution = Resolution(NOW)
        resolution.failures = {id_: str(id_) for id_, state in ends.items() if state in FAILURES}
        self.states |= ends
        resolution.end(ends)
        while True:
            while member_ids := resolution.missing_edges():
                resolution.add_edges(member_ids, self._edges_from(member_ids))
                resolution.advance()
            resolution.advance()
            if not resolution.closing:
                break
            incoming = self._edges_into(set(resolution.closing))
            siblings = [member.id for _, member in incoming]
            resolution.add_edges(siblings, self._edges_from(siblings))
            resolution.cancel_siblings(incoming)
        self._apply(resolution)
        return resolution

    def _edges_from(self, ids: list[UUID]) -> list[EdgeContext]:
        edges = [edge for edge in self.edges.values() if edge.upstream_id in ids and edge.state is EdgeState.OPEN]
        return [EdgeContext(edge, self.groups[edge.downstream_id, 0], self.facts(edge.downstream_id)) for edge in edges]

    def _edges_into(self, keys: set[tuple[UUID, int]]) -> list[tuple[StoredEdge, MemberFacts]]:
        edges = [edge for edge in self.edges.values() if (edge.downstream_id, 0) in keys]
        return [(edge, self.facts(edge.upstream_id)) for edge in edges if edge.state is EdgeState.OPEN]

    def _apply(self, resolution: Resolution) -> None:
        for edge in resolution.edges:
            assert self.edges[edge.upstream_id, edge.downstream_id].state is EdgeState.OPEN, "resolved twice"
            self.edges[edge.upstream_id, edge.downstream_id] = edge
        self.groups |= {key: resolution.groups[key] for key in resolution.changed}
        for id_ in resolution.released:
            assert self.states[id_] is State.BLOCKED
            self.states[id_] = State.WAITING
        for id_, state in (
            *((id_, State.SKIPPED) for id_ in resolution.skipped),
            *((id_, State.CANCELLED) for id_ in resolution.cancelled),
        ):
            assert not self.states[id_].is_terminal
            self.states[id_] = state
        self.siblings |= set(resolution.cancelled)
        self.failures |= set(resolution.failures)
        for id_, state in self.states.items():
            group = self.groups.get((id_, 0))
            if state.is_terminal and group is not None and group.state is GroupState.OPEN:
                self.groups[group.key] = replace(group, state=GroupState.CLOSED)

    def picture(self) -> FlowPicture:
        members = {str(id_): self._member(id_) for id_ in self.states}
        edges = tuple(
            EdgePicture(str(edge.upstream_id), str(edge.downstream_id), 0, edge.kind.value, edge.state.value)
            for edge in self.edges.values()
        )
        groups = {(str(key[0]), 0): _group(group) for key, group in self.groups.items()}
        return FlowPicture(str(FLOW), False, False, False, None, members, edges, groups)

    def _member(self, id_: UUID) -> MemberPicture:
        facts = self.facts(id_)
        by = "flow_sibling" if id_ in self.siblings else None
        after_failure = facts.state is State.SKIPPED and id_ in self.failures
        return MemberPicture(
            str(id_), facts.state.value, facts.blocking_reason.value, facts.started, by, after_failure=after_failure
        )


def _group(group: EdgeGroup) -> GroupPicture:
    join = group.join
    return GroupPicture(
        str(group.downstream_id),
        0,
        join.kind.value,
        join.k,
        join.siblings.value,
        group.state.value,
        group.n,
        group.satisfied,
        group.impossible,
        group.draft,
    )


@given(st.randoms(use_true_random=False), st.booleans())
def test_random_flow_is_resolved_as_the_model_predicts(rng: random.Random, is_batched: bool) -> None:
    flow = FlowInMemory.make_random(rng)
    while ready := [id_ for id_, state in flow.states.items() if state in (State.WAITING, State.ACTIVE)]:
        ending = rng.sample(ready, rng.randint(1, len(ready)) if is_batched else 1)
        flow.started |= set(ending)
        before = flow.picture()
        flow.end({id_: rng.choice(ENDS) for id_ in ending})
        assert find_problems(flow.picture()) == []
        if not is_batched:
            assert list(find_step_problems(before, flow.picture())) == []
    assert all(state.is_terminal for state in flow.states.values()), "a member is stuck"
