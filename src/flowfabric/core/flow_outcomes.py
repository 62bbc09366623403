"""What operations on flows and children answer, and what reads show of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.flows import CancelPolicy, EdgeGroup, EdgeState, Flow, FlowState, StoredEdge, flow_state
from flowfabric.core.states import State
from flowfabric.core.views import Outcome


@dataclass(frozen=True, slots=True)
class FlowCreated:
    """The flow is stored under this id; its members by name."""

    flow_id: UUID
    members: Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class FlowDuplicate:
    """The same flow was stored before; nothing was written."""

    flow_id: UUID
    members: Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class MemberAdded:
    """The member is stored under this id; the graph is now at this revision."""

    execution_id: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class MemberDuplicate:
    """The same member was stored before; nothing was written."""

    execution_id: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class EdgeAdded:
    """The edge is stored, now or before; `resolved` says what is known of it already."""

    revision: int
    resolved: EdgeState


@dataclass(frozen=True, slots=True)
class Sealed:
    """Nothing more is added: to the member, or to the flow."""

    revision: int


@dataclass(frozen=True, slots=True)
class FlowCancelled:
    """The flow is cancelled, and with it so many members; no more of them will start."""

    cancelled: int


@dataclass(frozen=True, slots=True)
class CancelScheduled:
    """The flow is cancelled; so many members are left, which are cancelled in the background."""

    left: int


@dataclass(frozen=True, slots=True)
class FlowAlreadyCancelled:
    """The flow was cancelled before, in this way."""

    policy: CancelPolicy
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class WaitingForChildren:
    """The lease was given up; the same attempt goes on when the children have ended as the join says."""


@dataclass(frozen=True, slots=True)
class ChildrenReady:
    """There is nothing to wait for: how those children ended that have. The lease is kept."""

    outcomes: Mapping[UUID, Outcome]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The worker is told at its next renewal; what has not ended by then is cancelled."""

    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSummary:
    """A flow at a glance; `counts` are its members by state."""

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
    """A flow with its graph: every edge and what became of it, every group with its join and counters. A graph of more
    than 100,000 edges or groups `is_cut`: what is over that is left out."""

    edges: tuple[StoredEdge, ...]
    groups: tuple[EdgeGroup, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of flows, and the cursor of the next one if there is more."""

    items: tuple[FlowSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Input:
    """What an upstream left for a member: its result if it completed, and how it ended, if it has."""

    execution_id: UUID
    outcome: State | None
    result: bytes | None
    encoding: str | None
    ended_at: datetime | None = None


def summarize_flow(flow: Flow, counts: Mapping[State, int]) -> FlowSummary:
    """The public view of a flow."""
    return FlowSummary(**_values(flow, counts))


def describe_graph(
    flow: Flow, counts: Mapping[State, int], edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], most: int
) -> FlowDescription:
    """The public view of a flow with its graph, of which it shows so many edges and groups at most."""
    is_cut = len(edges) > most or len(groups) > most
    return FlowDescription(
        **_values(flow, counts), edges=tuple(edges[:most]), groups=tuple(groups[:most]), is_cut=is_cut
    )


def _values(flow: Flow, counts: Mapping[State, int]) -> dict[str, Any]:
    names = (
        "id", "namespace", "name", "implicit", "sealed", "revision", "tags", "created_at", "changed_at", "ended_at",
    )  # fmt: skip
    cancel = flow.cancel
    return {name: getattr(flow, name) for name in names} | {
        "state": flow_state(flow, counts),
        "counts": counts,
        "cancel_policy": cancel and cancel.policy,
        "cancel_reason": cancel and cancel.reason,
        "cancelled_by": cancel and cancel.source,
        "cancel_principal": cancel and cancel.principal,
    }
