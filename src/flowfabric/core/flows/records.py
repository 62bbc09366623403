"""Records of a flow: its own row, its edges, and the group of inbound edges of each member.

    edge         open ─ its upstream ends ─→ satisfied or impossible ─ replay ─→ open
    edge group   open ─ enough edges are satisfied ─→ fired           ─ replay ─→ open
                   ├─ too few edges can be satisfied ─→ impossible
                   └─ its member ends before that ─→ closed
    flow         open, running, blocked ─ sealed and all members ended ─→ completed, failed
                   └─ cancel ─→ cancelled

The group with `seq` 0 holds the dependencies of a member. Groups with higher numbers are the waits of a parent for its
children. The counters of a group can be recomputed from its edges at any time. The lock on the flow's row covers its
edges and groups too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.flows.graph import EdgeKind, Join

DEPENDENCIES = 0
SIBLING = "flow_sibling"
FLOW_CANCEL = "flow_cancel"
# The failure category of a member that was skipped because of a failure.
UPSTREAM_FAILED = "upstream_failed"


class FlowState(StrEnum):
    """The state of a flow: not started, running, blocked because no member can run now, or ended."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = frozenset({FlowState.OPEN, FlowState.RUNNING, FlowState.BLOCKED})


class EdgeState(StrEnum):
    """The state of an edge."""

    OPEN = "open"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class GroupState(StrEnum):
    """The state of an edge group. A decided group keeps its state until a replay opens it again."""

    OPEN = "open"
    FIRED = "fired"
    IMPOSSIBLE = "impossible"
    CLOSED = "closed"


class CancelPolicy(StrEnum):
    """The members that a flow's cancellation ends: all, only unstarted ones, or none."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    FLOW_ONLY = "flow_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancel:
    """The cancellation of a flow. It cannot be undone."""

    policy: CancelPolicy
    reason: str
    source: str
    principal: str
    at: datetime


@record(frozen=True, slots=True, kw_only=True)
class FlowRecord:
    """The row of a flow.

    `ended_badly` is the number of members that failed, expired or were cancelled, without the members that were
    cancelled because a join no longer needed them. `was_replayed` is True if any member was ever replayed.
    """

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
    was_replayed: bool = False

    @property
    def is_frozen(self) -> bool:
        """True if the flow is cancelled and its edges no longer start, skip or cancel members."""
        return self.cancel is not None and self.cancel.policy is not CancelPolicy.FLOW_ONLY

    @property
    def cancels_started(self) -> bool:
        """True if the cancellation also ends members that have started."""
        return self.cancel is not None and self.cancel.policy is CancelPolicy.CANCEL_ALL


@record(frozen=True, slots=True, kw_only=True)
class StoredEdge:
    """An edge between two executions of a flow, in a group of its downstream member."""

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
        """The key of the edge's group."""
        return self.downstream_id, self.seq

    def resolve(self, outcome: State, now: datetime, *, after_failure: bool = False) -> StoredEdge:
        """Return the edge after its upstream member ended with `outcome`, or was skipped because of a failure."""
        return replace(self, state=resolve_edge(self.kind, outcome, after_failure=after_failure), resolved_at=now)

    def reopen(self) -> StoredEdge:
        """Return the edge as it is while its upstream member has not ended."""
        return replace(self, state=EdgeState.OPEN, resolved_at=None)


@record(frozen=True, slots=True, kw_only=True)
class EdgeGroup:
    """The inbound edges of a member: their join, and how many are satisfied or impossible."""

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
        """The key that identifies the group."""
        return self.downstream_id, self.seq

    def add_resolved(self, states: Sequence[EdgeState]) -> EdgeGroup:
        """Return the group with the counts of newly resolved edges added."""
        satisfied = self.satisfied + states.count(EdgeState.SATISFIED)
        return replace(self, satisfied=satisfied, impossible=self.impossible + states.count(EdgeState.IMPOSSIBLE))


@record(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """The fields of an execution that are needed to decide what happens in its flow."""

    id: UUID
    flow_id: UUID | None
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None
    parent_id: UUID | None
    has_children: bool
    started: bool
    name: str | None = None
    failure_category: str | None = None

    @property
    def failure(self) -> str | None:
        """What its downstream members are told if it failed, expired, or was skipped because of a failure."""
        if self.state is State.SKIPPED and self.failure_category == UPSTREAM_FAILED:
            return f'upstream "{self.name or self.id}" was skipped after a failure'
        return describe_failure(self.id, self.name, self.state)

    @property
    def is_blocked(self) -> bool:
        """True if the execution waits for its edge group."""
        return self.state is State.BLOCKED and self.blocking_reason is BlockingReason.WAITING_FOR_CHILDREN

    @property
    def flow(self) -> UUID | None:
        """The flow whose lock covers the execution: the flow that it is a member of, or the flow of its children."""
        return self.flow_id or (self.id if self.has_children else None)


@record(frozen=True, slots=True, kw_only=True)
class MemberEnd:
    """The end of an execution that is a member of a flow, a child, or a parent whose children form a flow.

    `ran` is True if the execution completed; it then has no open edge group.
    """

    id: UUID
    flow_id: UUID | None
    parent_id: UUID | None
    is_root: bool
    state: State
    is_bad: bool
    ran: bool
    name: str | None = None

    @property
    def failure(self) -> str | None:
        """What its downstream members are told if it failed or expired."""
        return describe_failure(self.id, self.name, self.state)


_SATISFIED_BY = {
    EdgeKind.ON_SUCCESS: frozenset({State.COMPLETED}),
    EdgeKind.ON_FAILURE: frozenset({State.FAILED, State.EXPIRED}),
    EdgeKind.ON_FAILURE_OR_SKIP: frozenset({State.FAILED, State.EXPIRED}),
    EdgeKind.ON_COMPLETION: frozenset(
        {State.COMPLETED, State.FAILED, State.EXPIRED, State.CANCELLED, State.SKIPPED}
    ),
}  # fmt: skip
_ENDED_BADLY = frozenset({State.FAILED, State.EXPIRED, State.CANCELLED})
FAILURES = frozenset({State.FAILED, State.EXPIRED})


def describe_failure(id_: UUID, name: str | None, state: State) -> str | None:
    """Return the failure that downstream members of a failed or expired member see, or None for other states."""
    return f'upstream "{name or id_}" {state}' if state in FAILURES else None


def resolve_edge(kind: EdgeKind, outcome: State, *, after_failure: bool = False) -> EdgeState:
    """Return the state of an edge of this kind whose upstream member is in the state `outcome`.

    An `on_failure_or_skip` edge is also satisfied by a member that was skipped `after_failure`.
    """
    if not outcome.is_terminal:
        return EdgeState.OPEN
    is_failure = kind is EdgeKind.ON_FAILURE_OR_SKIP and outcome is State.SKIPPED and after_failure
    return EdgeState.SATISFIED if is_failure or outcome in _SATISFIED_BY[kind] else EdgeState.IMPOSSIBLE


def judge_group(join: Join, n: int, satisfied: int, impossible: int) -> GroupState:
    """Return the state of a group of `n` edges, given how many are satisfied and how many are impossible."""
    needed = join.needed(n)
    if satisfied >= needed:
        return GroupState.FIRED
    return GroupState.IMPOSSIBLE if n - impossible < needed else GroupState.OPEN


def counts_as_bad(state: State, cancelled_by: str | None) -> bool:
    """Return True if a member that ended like this may fail its flow.

    A member that a join no longer needed does not.
    """
    return state in _ENDED_BADLY and cancelled_by != SIBLING


def final_state(flow: FlowRecord, *, has_failed: bool) -> FlowState:
    """Return the final state of a flow whose members have all ended.

    `has_failed` is True if no member handled a failure, or if a member is still skipped because of a failure that a
    replay repaired.
    """
    if flow.cancel is not None:
        return FlowState.CANCELLED
    return FlowState.FAILED if has_failed else FlowState.COMPLETED


def flow_state(flow: FlowRecord, members: Mapping[State, int]) -> FlowState:
    """Derive the state of a flow from its row and the number of its members in each state."""
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
