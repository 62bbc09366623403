"""The ports for flows: their rows, which are locked before anything else, and the edges, groups and members of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.flows import EdgeGroup, Flow, MemberFacts, StoredEdge
from flowfabric.core.frozen import record
from flowfabric.core.membership import Surrounding
from flowfabric.core.records import CancelRequest, Execution
from flowfabric.core.states import BlockingReason, State
from flowfabric.core.waits import Waitpoint


@record(frozen=True, slots=True, kw_only=True)
class Closing:
    """Executions that have ended, on which suspensions and waitpoints may be open; those that were active have no open
    suspension."""

    were_active: Sequence[UUID] = ()
    others: Sequence[UUID] = ()


NOTHING_OPEN = Closing()


@record(frozen=True, slots=True)
class Release:
    """A member that may go on: at once, or at its time."""

    id: UUID
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None


@record(frozen=True, slots=True, kw_only=True)
class Ending:
    """A member that its flow ends: skipped or cancelled, by what and why."""

    id: UUID
    state: State
    cancelled_by: str | None
    principal: str | None
    reason: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A member that ended badly, and whether an edge took that up or its parent waited for it."""

    state: State
    cancelled_by: str | None
    is_taken_up: bool


class Edges(Protocol):
    """Edges and groups of locked flows, and what must be known of members."""

    async def leading_from(self, ids: Sequence[UUID]) -> list[Surrounding]:
        """The open edges that lead away from executions, each with its group and its downstream."""

    async def within(self, flow_ids: Sequence[UUID]) -> list[Surrounding]:
        """All open edges of flows."""

    async def open_into(self, ids: Sequence[UUID]) -> list[tuple[StoredEdge, MemberFacts]]:
        """The open edges into members, each with its upstream."""

    async def into(self, ids: Sequence[UUID], seq: int = 0) -> list[tuple[StoredEdge, MemberFacts]]:
        """All edges of one group of members, each with its upstream."""

    async def out_of(self, ids: Sequence[UUID]) -> list[StoredEdge]:
        """All edges that lead away from executions."""

    async def between(self, upstream_id: UUID, downstream_id: UUID) -> StoredEdge | None:
        """The edge between two members."""

    async def reaches(self, flow_id: UUID, start: UUID, end: UUID) -> bool:
        """True if edges lead from one member to another."""

    async def add(self, edges: Sequence[StoredEdge]) -> None:
        """Stores new edges."""

    async def put(self, edges: Sequence[StoredEdge]) -> None:
        """Writes how edges were resolved, or that they are open again."""

    async def put_groups(self, groups: Sequence[EdgeGroup]) -> None:
        """Stores groups, or writes them over what they were."""

    async def groups_of(self, ids: Sequence[UUID]) -> list[EdgeGroup]:
        """All groups of members."""

    async def sweeping(self, flow_ids: Sequence[UUID]) -> list[EdgeGroup]:
        """Decided groups whose remaining siblings are not all cancelled yet."""

    async def of_flow(self, flow_id: UUID, limit: int) -> tuple[list[StoredEdge], list[EdgeGroup]]:
        """The edges and groups of a flow."""


class Members(Protocol):
    """Members of locked flows: read, and moved in great number by narrow statements."""

    async def facts(self, ids: Sequence[UUID]) -> dict[UUID, MemberFacts]:
        """What must be known of executions; not locked, since their flow is."""

    async def lock(self, ids: Sequence[UUID]) -> None:
        """Waits for the rows of members, in id order, and keeps them."""

    async def release(self, items: Sequence[Release], now: datetime) -> None:
        """Lets blocked members go on, with an event each."""

    async def end(self, items: Sequence[Ending], now: datetime) -> None:
        """Ends members as skipped or cancelled: lease, attempt and event as any other end has them."""

    async def page(self, flow_id: UUID, after: UUID, limit: int) -> list[Execution]:
        """Members with a greater id, in order."""

    async def live(self, flow_id: UUID, *, only_unstarted: bool, limit: int) -> list[UUID]:
        """Members that have not ended, in id order."""

    async def request_cancel(self, ids: Sequence[UUID], request: CancelRequest) -> None:
        """Has members cancelled when the request is due."""

    async def awaited(self, child_ids: Sequence[UUID]) -> list[Waitpoint]:
        """The open waitpoints of parents that stand for the end of these executions."""

    async def children_of(self, ids: Collection[UUID]) -> list[MemberFacts]:
        """The children of executions."""


class Flows(Protocol):
    """Rows of flows, and what belongs to them."""

    @property
    def edges(self) -> Edges: ...
    @property
    def members(self) -> Members: ...

    async def add(self, flows: Sequence[Flow]) -> set[UUID]:
        """Stores new flows; answers which: ids that are taken are left out."""

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        """The flows among these ids that exist in the namespace (None: in any)."""

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        """The same, locked until the transaction ends; waits for other holders, in id order."""

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, Flow]:
        """The same in any namespace, but leaves out flows that others have locked."""

    async def lock_of(self, execution_ids: Sequence[UUID], *, wait: bool) -> dict[UUID, Flow]:
        """The flow of each execution that has one, locked; unless told to wait, busy ones are left out."""

    async def put(self, flows: Sequence[Flow]) -> None:
        """Writes locked flows over what they were."""

    async def settle(
        self, edges: Sequence[StoredEdge], groups: Sequence[EdgeGroup], flows: Sequence[Flow], now: datetime,
        closing: Closing = NOTHING_OPEN,
    ) -> None:  # fmt: skip
        """Writes what has followed from the ends of members: how edges were resolved, what is known of groups with the
        same edges, and flows in which nothing but the counts and the end have changed; and closes what is open."""

    async def page(self, namespace: str, before: UUID, limit: int, *, only_live: bool) -> list[Flow]:
        """Flows with a smaller id, newest first; perhaps only those that have not finished."""

    async def counts(self, ids: Sequence[UUID]) -> dict[UUID, dict[State, int]]:
        """How many members of each flow are in each state."""

    async def bad_ends(self, flow_id: UUID) -> list[BadEnd]:
        """The members that failed, expired or were cancelled."""

    async def purge(self, ids: Sequence[UUID]) -> None:
        """Removes flows whose members are gone, with their edges and groups."""
