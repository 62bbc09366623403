"""What a flow is made of: its own row, its edges, and the group of inbound edges of each member.

    edge         open ─ its upstream ends ─→ satisfied or impossible ─ replay ─→ open
    edge group   open ─ enough edges are satisfied ─→ fired           ─ replay ─→ open
                   ├─ they no longer can be ─→ impossible
                   └─ its member ends otherwise ─→ closed
    flow         open, running, blocked ─ sealed and all members ended ─→ completed, failed
                   └─ cancel ─→ cancelled

A group with `seq` 0 holds the dependencies of a member; those with higher numbers are the waits of a parent for its
children. Their counters can be counted again from the edges at any time. The lock on the flow's row covers them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from flowfabric.core.frozen import record, replace
from flowfabric.core.graph import EdgeKind, Join
from flowfabric.core.states import BlockingReason, State

DEPENDENCIES = 0
SIBLING = "flow_sibling"
FLOW_CANCEL = "flow_cancel"


class FlowState(StrEnum):
    """Where a flow is: nothing of it runs yet, it runs, it waits for something outside, or how it ended."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = frozenset({FlowState.OPEN, FlowState.RUNNING, FlowState.BLOCKED})


class EdgeState(StrEnum):
    """What is known of an edge."""

    OPEN = "open"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class GroupState(StrEnum):
    """What is known of the edges of a member together; a group is decided once."""

    OPEN = "open"
    FIRED = "fired"
    IMPOSSIBLE = "impossible"
    CLOSED = "closed"


class CancelPolicy(StrEnum):
    """Whom the cancellation of a flow ends: everybody, only who has not started, or nobody."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    FLOW_ONLY = "flow_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancel:
    """How a flow was cancelled, once and for all."""

    policy: CancelPolicy
    reason: str
    source: str
    principal: str
    at: datetime


@record(frozen=True, slots=True, kw_only=True)
class Flow:
    """The row of a flow. `ended_badly` counts members that failed, expired or were cancelled for themselves."""

    id: UUID
    namespace: str
    name: str
    implicit: bool
    tags: Mapping[str, str]
    digest: str
    sealed: bool
    revision: int
    open_members: int
    ended_badly: int
    created_at: datetime
    changed_at: datetime
    ended_at: datetime | None = None
    finished: FlowState | None = None
    cancel: FlowCancel | None = None
    sweep_at: datetime | None = None
    purge_at: datetime | None = None

    @property
    def is_frozen(self) -> bool:
        """True when its edges start, skip and cancel nobody any more."""
        return self.cancel is not None and self.cancel.policy is not CancelPolicy.FLOW_ONLY

    @property
    def cancels_started(self) -> bool:
        """True when its cancellation also ends members that have started."""
        return self.cancel is not None and self.cancel.policy is CancelPolicy.CANCEL_ALL


@record(frozen=True, slots=True, kw_only=True)
class StoredEdge:
    """An edge between two executions of a flow, in the group of the downstream that it belongs to."""

    flow_id: UUID
    upstream_id: UUID
    downstream_id: UUID
    seq: int
    kind: EdgeKind
    input: str
    state: EdgeState = EdgeState.OPEN
    resolved_at: datetime | None = None

    @property
    def group_key(self) -> tuple[UUID, int]:
        """The group that it belongs to."""
        return self.downstream_id, self.seq

    def ended(self, outcome: State, now: datetime) -> StoredEdge:
        """The edge after its upstream has ended so."""
        return StoredEdge(
            flow_id=self.flow_id, upstream_id=self.upstream_id, downstream_id=self.downstream_id, seq=self.seq,
            kind=self.kind, input=self.input, state=resolved(self.kind, outcome), resolved_at=now,
        )  # fmt: skip


@record(frozen=True, slots=True, kw_only=True)
class EdgeGroup:
    """The inbound edges of a member together: how they are joined, and how many have come out how."""

    downstream_id: UUID
    seq: int
    flow_id: UUID
    join: Join
    n: int
    satisfied: int = 0
    impossible: int = 0
    state: GroupState = GroupState.OPEN
    draft: bool = False
    sweeping: bool = False

    @property
    def key(self) -> tuple[UUID, int]:
        """What tells the group from all others."""
        return self.downstream_id, self.seq

    def counting(self, states: Sequence[EdgeState]) -> EdgeGroup:
        """The group after some of its edges were resolved so."""
        satisfied = self.satisfied + states.count(EdgeState.SATISFIED)
        return replace(self, satisfied=satisfied, impossible=self.impossible + states.count(EdgeState.IMPOSSIBLE))


@record(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """What must be known of an execution to tell what its flow does with it."""

    id: UUID
    flow_id: UUID | None
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None
    parent_id: UUID | None
    has_children: bool
    started: bool

    @property
    def is_blocked(self) -> bool:
        """True while it waits for its group."""
        return self.state is State.BLOCKED and self.blocking_reason is BlockingReason.WAITING_FOR_CHILDREN

    @property
    def flow(self) -> UUID | None:
        """The flow whose lock covers it: the one that it is a member of, or the one of its children."""
        return self.flow_id or (self.id if self.has_children else None)


@record(frozen=True, slots=True, kw_only=True)
class MemberEnd:
    """The end of an execution that a flow hears of: as a member, as a child, or as the root of its children's flow.
    One that `ran` to its end has no open group."""

    id: UUID
    flow_id: UUID | None
    parent_id: UUID | None
    is_root: bool
    state: State
    is_bad: bool
    ran: bool


_SATISFIED_BY = {
    EdgeKind.ON_SUCCESS: frozenset({State.COMPLETED}),
    EdgeKind.ON_FAILURE: frozenset({State.FAILED, State.EXPIRED}),
    EdgeKind.ON_COMPLETION: frozenset(
        {State.COMPLETED, State.FAILED, State.EXPIRED, State.CANCELLED, State.SKIPPED}
    ),
}  # fmt: skip
_ENDED_BADLY = frozenset({State.FAILED, State.EXPIRED, State.CANCELLED})


def resolved(kind: EdgeKind, outcome: State) -> EdgeState:
    """What becomes of an edge when its upstream ends so; open while it has not."""
    if not outcome.is_terminal:
        return EdgeState.OPEN
    return EdgeState.SATISFIED if outcome in _SATISFIED_BY[kind] else EdgeState.IMPOSSIBLE


def judged(join: Join, n: int, satisfied: int, impossible: int) -> GroupState:
    """What is known of a group of `n` edges."""
    needed = join.needed(n)
    if satisfied >= needed:
        return GroupState.FIRED
    return GroupState.IMPOSSIBLE if n - impossible < needed else GroupState.OPEN


def counts_as_bad(state: State, cancelled_by: str | None) -> bool:
    """True for an end that may make the flow fail: not if it was a sibling that no longer mattered."""
    return state in _ENDED_BADLY and cancelled_by != SIBLING


def finished(flow: Flow, bad_ends: int) -> FlowState:
    """How a flow whose members have all ended has ended itself; `bad_ends` are those that nothing took up."""
    if flow.cancel is not None:
        return FlowState.CANCELLED
    return FlowState.FAILED if bad_ends else FlowState.COMPLETED


def flow_state(flow: Flow, members: Mapping[State, int]) -> FlowState:
    """The state of a flow from its row and the number of its members in each state; the only function that tells."""
    if flow.cancel is not None:
        return FlowState.CANCELLED
    if flow.finished is not None:
        return flow.finished
    if members.get(State.ACTIVE):
        return FlowState.RUNNING
    if members.get(State.WAITING) or not any(members.values()):
        return FlowState.OPEN if not _has_begun(members) else FlowState.RUNNING
    live = any(number for state, number in members.items() if not state.is_terminal)
    return FlowState.BLOCKED if live else FlowState.OPEN


def _has_begun(members: Mapping[State, int]) -> bool:
    return any(number for state, number in members.items() if state not in (State.WAITING, State.BLOCKED))
