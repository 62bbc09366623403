"""Outcomes of operations on flows and children, and the public views of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import Outcome
from flowfabric.core.flows.records import (
    CancelPolicy,
    EdgeGroup,
    EdgeState,
    FlowRecord,
    FlowState,
    StoredEdge,
    flow_state,
)


@dataclass(frozen=True, slots=True)
class FlowCreated:
    """The flow was stored; the fields are its id and the ids of its members by name."""

    flow_id: UUID
    members: Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class FlowDuplicate:
    """The same flow was stored before. Nothing was written."""

    flow_id: UUID
    members: Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class MemberAdded:
    """The member was stored as the execution `execution_id`. `revision` is the new revision of the graph."""

    execution_id: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class MemberDuplicate:
    """The same member was stored before. Nothing was written."""

    execution_id: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class EdgeAdded:
    """The edge was stored, by this call or by an earlier call; `resolved` is the state of the edge."""

    revision: int
    resolved: EdgeState


@dataclass(frozen=True, slots=True)
class Sealed:
    """The member or flow is sealed: nothing can be added to it."""

    revision: int


@dataclass(frozen=True, slots=True)
class FlowCancelled:
    """The flow is cancelled; `cancelled` is the number of members that this call cancelled.

    `members` has the ids of at most 1,000 of them, and `is_truncated` is True if there are more. The flow starts no
    further members.
    """

    cancelled: int
    members: tuple[UUID, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class CancelScheduled:
    """The flow is cancelled; `remaining` is the number of members that a reconciler will cancel.

    The other fields describe the members that this call cancelled, as in `FlowCancelled`.
    """

    remaining: int
    cancelled: int
    members: tuple[UUID, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class FlowAlreadyTerminal:
    """The flow had finished or was already cancelled, and nothing was written.

    `state` is its final state. The other fields describe the earlier cancellation, if there was one.
    """

    state: FlowState
    policy: CancelPolicy | None = None
    reason: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReplayed:
    """The failed members of a flow run again.

    `replayed` is the number of failed members that this call replayed, and `revived` the number of skipped members that
    it brought back. `members` has the ids of at most 1,000 replayed members, and `is_truncated` is True if there are
    more. `exhausted` has the ids of at most 1,000 failed members that have reached their limit of replays.
    """

    replayed: int
    revived: int
    members: tuple[UUID, ...]
    is_truncated: bool
    exhausted: tuple[UUID, ...]
    ended_until: datetime


@dataclass(frozen=True, slots=True)
class WaitingForChildren:
    """The lease was given up. The same attempt continues when the children satisfy the join."""


@dataclass(frozen=True, slots=True)
class ChildrenReady:
    """The children already satisfy the join, and the worker keeps its lease.

    `outcomes` has the outcomes of the ended children.
    """

    outcomes: Mapping[UUID, Outcome]


@dataclass(frozen=True, slots=True)
class CancelPending:
    """Cancellation was requested, and the worker learns of it at its next renewal.

    The execution is cancelled at `due_at` at the latest.
    """

    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSummary:
    """The summary of a flow; `counts` has the number of members in each state."""

    id: UUID
    namespace: str
    name: str
    state: FlowState
    implicit: bool
    sealed: bool
    revision: int
    tags: Mapping[str, str]
    counts: Mapping[State, int]
    created_at: datetime
    changed_at: datetime
    ended_at: datetime | None
    cancel_policy: CancelPolicy | None
    cancel_reason: str | None
    cancelled_by: str | None
    cancel_principal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDescription(FlowSummary):
    """A flow with its graph: every edge and its state, and every group with its join and counters.

    `is_truncated` is True if only the first 100,000 edges or groups are included.
    """

    edges: tuple[StoredEdge, ...]
    groups: tuple[EdgeGroup, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of flows, and the cursor of the next page if there is one."""

    items: tuple[FlowSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Input:
    """The input from an upstream member: the outcome if the member has ended, and its result if it completed."""

    execution_id: UUID
    outcome: State | None
    result: bytes | None
    encoding: str | None
    ended_at: datetime | None = None


def summarize_flow(flow: FlowRecord, counts: Mapping[State, int]) -> FlowSummary:
    """Return the summary of a flow."""
    return FlowSummary(**_values(flow, counts))


def describe_graph(
    flow: FlowRecord, counts: Mapping[State, int], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], limit: int
) -> FlowDescription:
    """Return the view of a flow with its graph: at most `limit` edges and `limit` groups."""
    is_truncated = len(edges) > limit or len(groups) > limit
    return FlowDescription(
        **_values(flow, counts), edges=tuple(edges[:limit]), groups=tuple(groups[:limit]), is_truncated=is_truncated
    )


def _values(flow: FlowRecord, counts: Mapping[State, int]) -> dict[str, Any]:
    stored = {item.name for item in fields(FlowSummary)} & {item.name for item in fields(FlowRecord)}
    cancel = flow.cancel
    return {name: getattr(flow, name) for name in stored} | {
        "state": flow_state(flow, counts),
        "counts": counts,
        "cancel_policy": cancel and cancel.policy,
        "cancel_reason": cancel and cancel.reason,
        "cancelled_by": cancel and cancel.source,
        "cancel_principal": cancel and cancel.principal,
    }
